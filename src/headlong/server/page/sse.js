/** Server-sent events of a fetched body; `EventSource` can neither POST nor send a key. */

/** Yield the data of every event until the stream ends. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  try {
    for (;;) {
      const { value, done } = await nextPart(reader);
      if (done) return;
      const events = (pending + value).split(/\r?\n\r?\n/);
      pending = events.pop();
      for (const event of events) {
        const data = dataOf(event);
        if (data !== null) yield data;
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // the connection is gone already when the user pressed stop
  }
}

async function nextPart(reader) {
  try {
    return await reader.read();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The connection broke off before the answer was complete.");
  }
}

/** Join an event's data lines; null for comments, which servers send to keep a line open. */
function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.length ? lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n") : null;
}

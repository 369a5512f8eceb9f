#!/usr/bin/env bash
# Gets Chromium for the tests of the server's page: finds one, or installs Debian's where it may.
# Says what to do otherwise and ends well: the tests then skip, unless HEADLONG_REQUIRE_BROWSER=1.
# Usage: tools/install_browser.sh
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null 2>&1; then
        exit 0
    fi
done

if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing Chromium for the tests of the page (once) …"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    if DEBIAN_FRONTEND=noninteractive apt-get update -qq >"$log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium \
            >>"$log" 2>&1; then
        exit 0
    fi
    tail -3 "$log" >&2
fi

echo "There is no Chromium here, so tests of the page are skipped." >&2
echo "  → Install it (Debian: apt-get install chromium; macOS: brew install chromium)." >&2

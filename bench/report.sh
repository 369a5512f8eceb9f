# Steps of a report about one machine; sourced by apple.sh and cuda.sh, which say what the steps are.
#
# In:  $PYTHON, an interpreter that has Headlong; the folder of the report.
# Out: $folder/report.txt to read, a file or two a step, and report.tar.gz to send back.

begin_report() { # FOLDER, from the folder $1
    case $2 in /*) folder=$2 ;; *) folder=$1/$2 ;; esac
    mkdir -p "$folder"
    : > "$folder/report.txt"
    failures=0
}

say() { echo "$*" | tee -a "$folder/report.txt"; }

step() { # NAME MUST|MAY COMMAND…: run it, keep what it says, note how it went
    local name=$1 must=$2 began=$SECONDS status
    shift 2
    echo "$(basename "$0"): $name …" >&2
    "$@" > "$folder/$name.out" 2> "$folder/$name.err"
    status=$?
    if [ $status -eq 0 ]; then
        say "ok      $name, $((SECONDS - began)) s"
    elif [ "$must" = MUST ]; then
        failures=$((failures + 1))
        say "FAILED  $name (status $status, $((SECONDS - began)) s): $folder/$name.out, .err"
    else
        say "not ok  $name (status $status, $((SECONDS - began)) s): $folder/$name.out, .err"
    fi
    return 0
}

conditions() { # BACKEND
    uname -srm
    if [ "$(uname)" = Darwin ]; then
        sw_vers
        sysctl -n machdep.cpu.brand_string hw.memsize hw.ncpu
    fi
    git rev-parse HEAD 2>/dev/null
    git status --porcelain --untracked-files=no 2>/dev/null | head -20
    "$PYTHON" - "$1" <<'END'
import sys

from headlong.ops.backends import make_ops
from headlong.provenance import read_provenance

print(read_provenance().to_dict() | {"argv": None})
print(make_ops("auto").name, "|", make_ops(sys.argv[1]).note)
END
}

end_report() { # pack the report; the status is 1 where a step that has to hold did not
    local files=() file
    for file in "$folder"/*.out "$folder"/*.err "$folder"/*.txt "$folder"/*.json; do
        [ -e "$file" ] || continue
        # Paths of this machine are nobody's business, nor is who runs it: pytest names that one.
        # Bytes, not characters: a Mac's sed stops at what is not UTF-8.
        LC_ALL=C sed -e "s|$PWD|.|g" -e "s|$HOME|~|g" -e 's|pytest-of-[^/]*|pytest|g' "$file" \
            > "$file.clean" && mv "$file.clean" "$file"
        files+=("$(basename "$file")")
    done
    # Not `tar`, which writes the user's name into the archive.
    "$PYTHON" - "$folder" "${files[@]}" <<'END'
import sys
import tarfile
from pathlib import Path

folder, names = Path(sys.argv[1]), sys.argv[2:]


def without_owner(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


with tarfile.open(folder / "report.tar.gz", "w:gz") as archive:
    for name in names:
        archive.add(folder / name, name, filter=without_owner)
END
    say ""
    say "$([ $failures -eq 0 ] && echo 'All that has to hold held.' || echo "$failures steps failed.")"
    echo "Send back $folder/report.tar.gz with an issue; report.txt is the short of it."
    [ $failures -eq 0 ]
}

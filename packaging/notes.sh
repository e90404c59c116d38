#!/usr/bin/env bash
# Prints the release notes of a version: its section of CHANGELOG.md, or what is
# unreleased if it has none yet.
#
#   packaging/notes.sh v1.2.3
#   goreleaser release --release-notes <(packaging/notes.sh v1.2.3)
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1:?the version is missing: packaging/notes.sh VERSION}
section() {
	awk -v want="$1" '/^## / { on = ($2 == want); next } on' CHANGELOG.md
}
notes=$(section "${version#v}")
[ -n "$notes" ] || notes=$(section Unreleased)
[ -n "$notes" ] || { echo "packaging/notes.sh: CHANGELOG.md has neither $version nor anything unreleased" >&2; exit 1; }
printf '%s\n' "$notes"

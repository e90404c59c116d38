#!/usr/bin/env bash
# Judges the manual pages of libvipl: capi/test/man.sh DIR, the directory with man3 and man7. Every
# symbol of the library has a page that names it, and man and mandoc have nothing to warn of.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
dir=$1
ok=0
bad() {
	echo "not ok: $*"
	ok=1
}
while IFS=@ read -r name _; do
	page=$dir/man3/$name.3
	if [ ! -s "$page" ]; then
		bad "$name has no manual page"
		continue
	fi
	to=$(sed -n 's/^\.so //p' "$page")
	grep -q "$name(" "${to:+$dir/}${to:-$page}" || bad "$page does not show how $name is called"
done <capi/test/symbols.txt
for page in "$dir"/man?/*; do
	if command -v man >/dev/null; then
		warnings=$(cd "$dir" && LC_ALL=C.UTF-8 man --warnings -l "$page" 2>&1 >/dev/null)
		[ -z "$warnings" ] || bad "man: $page: $warnings"
	fi
	if command -v mandoc >/dev/null && ! grep -q '^\.so ' "$page"; then
		warnings=$(mandoc -T lint -W warning "$page") || bad "mandoc: $warnings"
	fi
done
command -v man >/dev/null || echo "SKIPPED: man is missing"
command -v mandoc >/dev/null || echo "SKIPPED: mandoc is missing"
exit $ok

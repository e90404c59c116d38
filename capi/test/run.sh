#!/usr/bin/env bash
# Builds libvipl and judges it: capi/test/run.sh [DIR]. DIR keeps what is built.
#
# The ABI and the symbols, the conformance programs over VI/TCP and FC-VI, as they
# are, under AddressSanitizer and under valgrind, and the examples against each
# other and against Go. Output is TAP of the programs that fail, and one line
# for each that was run. Takes three to four minutes.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
CC=${CC:-cc}
out=${1:-}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
out=${out:-$tmp/vipl}
failed=0
passed=0

# try NAME SECONDS COMMAND...: one line, and the output if it fails. A machine that does much
# besides gets five times the seconds; only what hangs takes them.
try() {
	local name=$1 limit=$(($2 * 5)) from=$SECONDS log=$tmp/log.$BASHPID
	shift 2
	if timeout "$limit" "$@" >"$log" 2>&1; then
		passed=$((passed + 1))
		echo "ok   $name ($((SECONDS - from)) s)"
	else
		echo "FAIL $name (exit status $?, $((SECONDS - from)) s)"
		grep -E -A 3 '^not ok|^Bail|panic|fatal|ERROR|^==[0-9]+== *[A-Z]' "$log" | head -n 60
		tail -n 5 "$log"
		failed=$((failed + 1))
	fi
}

PGO=${PGO:-off} capi/build.sh "$out" || exit 1
export LD_LIBRARY_PATH=$out/lib
warn="-Wall -Wextra -Werror -g -O1"
link="-I$out/include -L$out/lib"

compilers=$CC
command -v clang >/dev/null && compilers="$compilers clang"
for c in $compilers; do
	for std in c89 c99 c11 c17; do
		try "header: $c -std=$std" 20 "$c" -std=$std -pedantic-errors -Wall -Wextra -Werror -I"$out/include" -c capi/test/header.c -o "$tmp/header.o"
	done
	for std in c++98 c++11 c++17 c++20; do
		try "header: $c -std=$std" 20 "$c" -x c++ -std=$std -pedantic-errors -Wall -Wextra -Werror -I"$out/include" -c capi/test/header.c -o "$tmp/header.o"
	done
done
for flags in "-std=c99" "-std=c11 -DDIALECT095" "-x c++ -std=c++98" "-x c++ -std=c++20 -DDIALECT095"; do
	try "dialects: $flags" 20 bash -c "$CC $warn $flags $link capi/test/dialects.c -x none -o $tmp/dialects -lvipl && $tmp/dialects"
done
# shellcheck disable=SC2086
try "abi: x86-64" 20 bash -c "$CC $warn $link capi/test/abi.c -o $tmp/abi && $tmp/abi"
if command -v aarch64-linux-gnu-gcc >/dev/null; then
	# shellcheck disable=SC2086
	try "abi: arm64, compiled" 20 aarch64-linux-gnu-gcc $warn -I"$out/include" -c capi/test/abi.c -o "$tmp/abi.o"
else
	echo "SKIPPED: abi: arm64: aarch64-linux-gnu-gcc is missing"
fi
nm -D --defined-only "$out/lib/libvipl.so.1" | awk '$2 == "T" { print $3 }' | sort >"$tmp/symbols"
try "symbols" 5 diff capi/test/symbols.txt "$tmp/symbols"
try "soname" 5 sh -c "objdump -p '$out/lib/libvipl.so.1' | grep -q 'SONAME *libvipl.so.1'"
try "nodelete" 5 sh -c "readelf -d '$out/lib/libvipl.so.1' | grep -q NODELETE"
try "manual pages" 60 capi/test/man.sh "$out/share/man"
command -v pkg-config >/dev/null && try "pkg-config" 5 sh -c "PKG_CONFIG_PATH='$out/lib/pkgconfig' pkg-config --cflags --libs vipl | grep -q -e -lvipl"

for p in first conform luck neighbours limits; do
	# shellcheck disable=SC2086
	try "compile $p" 30 $CC $warn $link capi/test/$p.c -o "$tmp/$p" -lvipl -lpthread -ldl
	# shellcheck disable=SC2086
	try "compile $p for AddressSanitizer" 30 $CC -fsanitize=address $warn $link capi/test/$p.c -o "$tmp/$p.asan" -lvipl -lpthread -ldl
done
# shellcheck disable=SC2086
try "compile load" 30 $CC $warn -I"$out/include" capi/test/load.c -o "$tmp/load" -ldl
# A busy machine may use TCP where shared memory is not required.
printf '/dev/via_lo -> vitcp address 127.0.0.1 samehost require\nfcvi0 -> fcvi samehost require\n' >"$tmp/memory.conf"
for nic in /dev/via_lo fcvi0; do
	try "$nic: dlopen and dlclose" 20 "$tmp/load" $nic
	try "$nic: first" 20 "$tmp/first" $nic
	try "$nic: conform" 60 "$tmp/conform" $nic
	for p in luck neighbours; do
		for c in $("$tmp/$p" $nic); do
			try "$nic: $p $c" 60 "$tmp/$p" $nic "$c"
		done
	done
	try "$nic, shared memory: luck unmapped" 60 env VIPL_CONFIG="$tmp/memory.conf" LUCK_PATH=memory "$tmp/luck" $nic unmapped
	try "$nic: conform under AddressSanitizer" 90 env ASAN_OPTIONS=detect_leaks=0:handle_segv=0 "$tmp/conform.asan" $nic
done
# Without shared memory, by the sockets that other hosts would be reached by.
printf '/dev/via_lo -> vitcp address 127.0.0.1 samehost off\nfcvi0 -> fcvi samehost off\n' >"$tmp/tcp.conf"
for nic in /dev/via_lo fcvi0; do
	try "$nic, TCP: conform" 60 env VIPL_CONFIG="$tmp/tcp.conf" "$tmp/conform" $nic
	for c in unmapped descriptor-unmapped vis threads torn-down last-word; do
		try "$nic, TCP: luck $c" 60 env VIPL_CONFIG="$tmp/tcp.conf" LUCK_PATH=tcp "$tmp/luck" $nic "$c"
	done
done
# NICs whose addresses have a port, of 6 bytes.
printf '/dev/via_lo -> vitcp address 127.0.0.1 port always\nfcvi0 -> fcvi listen 127.0.0.1:0\n' >"$tmp/port.conf"
for nic in /dev/via_lo fcvi0; do
	try "$nic, with a port: conform" 60 env VIPL_CONFIG="$tmp/port.conf" "$tmp/conform" $nic
done
try "/dev/via_lo: limits" 100 "$tmp/limits" /dev/via_lo

# Programs as they were written for other libraries, unchanged, by the standards of their time.
for p in mpi clan ring; do
	for std in gnu17 gnu99 gnu89; do
		# shellcheck disable=SC2086
		try "old/$p: ${compilers##* } -std=$std" 30 ${compilers##* } -std=$std $warn $link capi/test/old/$p.c -o "$tmp/$p" -lvipl -lpthread
	done
	# shellcheck disable=SC2086
	try "old/$p: $CC -std=gnu89" 30 "$CC" -std=gnu89 $warn $link capi/test/old/$p.c -o "$tmp/$p" -lvipl -lpthread
	for nic in /dev/via_lo fcvi0 VINIC; do try "old/$p $nic" 60 "$tmp/$p" $nic; done
done
if command -v "${CXX:-c++}" >/dev/null; then
	for std in c++98 c++17; do
		# shellcheck disable=SC2086
		try "old/loader: -std=$std" 30 "${CXX:-c++}" -std=$std $warn capi/test/old/loader.cpp -o "$tmp/loader" -ldl -lpthread
	done
	for nic in VINIC fcvi; do try "old/loader $nic" 60 "$tmp/loader" $nic; done
else
	echo "SKIPPED: old/loader: a C++ compiler is missing"
fi

if command -v clang >/dev/null; then
	try "build by clang" 120 env CC=clang PGO=off capi/build.sh "$tmp/clang"
	try "/dev/via_lo: conform, built by clang" 60 env LD_LIBRARY_PATH="$tmp/clang/lib" "$tmp/conform" /dev/via_lo
fi
for op in "write 65536 4 1 65536 0.05" "write 64 64 16 1024 0.05" "ping 8 1 1 8 0.05"; do
	echo "bench -> vitcp listen 127.0.0.1:0 transfer 1M" >"$tmp/vipl.conf"
	# shellcheck disable=SC2086
	try "bench/peers: vipl $op" 20 env VIPL_CONFIG="$tmp/vipl.conf" bash -c "[ -x $tmp/bench ] || $CC -Wall -Wextra -Werror -O2 $link bench/peers/c/vipl.c -o $tmp/bench -lvipl && $tmp/bench $op"
done
if command -v valgrind >/dev/null; then
	go build -o "$tmp/memcheck" ./internal/tools/memcheck || exit 1
	# What a program does wrong is reported, also where the Go half meets it.
	# shellcheck disable=SC2086
	try "compile mistakes" 30 $CC $warn $link capi/test/mistakes.c -o "$tmp/mistakes" -lvipl -lpthread -ldl
	# Under valgrind a program uses one processor, so the trials that use no port of the others run
	# beside them.
	(
		try "fcvi0: conform under valgrind" 300 "$tmp/memcheck" "$tmp/conform" fcvi0
		for c in $("$tmp/mistakes" /dev/via_lo); do
			try "mistakes: $c under valgrind" 60 capi/test/mistakes.sh "$tmp/memcheck" "$tmp/mistakes" "$c"
		done
	) >"$tmp/beside" &
	try "/dev/via_lo: conform under valgrind" 300 "$tmp/memcheck" "$tmp/conform" /dev/via_lo
	try "/dev/via_lo, TCP: conform under valgrind" 300 env VIPL_CONFIG="$tmp/tcp.conf" "$tmp/memcheck" "$tmp/conform" /dev/via_lo
	wait
	cat "$tmp/beside"
	passed=$((passed + $(grep -c '^ok ' "$tmp/beside"))) failed=$((failed + $(grep -c '^FAIL ' "$tmp/beside")))
else
	echo "SKIPPED: valgrind is missing"
fi
[ -x examples/c/run.sh ] && try "examples/c" 100 examples/c/run.sh "$out"

echo "libvipl: $passed passed, $failed failed, $SECONDS s"
[ $failed = 0 ]

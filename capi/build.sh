#!/usr/bin/env bash
# Builds libvipl, the VI Provider Library for C programs, into a directory.
#
#   capi/build.sh [DIR]      DIR: where to, default dist/vipl
#
# It makes lib/libvipl.so.1 with the names that programs link and load, include/vipl.h, lib/pkgconfig/vipl.pc and share/man. CC chooses the compiler,
# CFLAGS is added to its flags. PGO is the profile that Go builds by, the command's
# unless set; off is quicker to build. Go, a C compiler and binutils are needed.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-dist/vipl}
mkdir -p "$out"
out=$(cd "$out" && pwd)
CC=${CC:-cc}
for tool in go "$CC" ar objcopy; do
	command -v "$tool" >/dev/null || { echo "capi/build.sh: $tool is missing" >&2; exit 1; }
done
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir -p "$out/lib/pkgconfig" "$out/include" "$out/share/man"

# The Go half. The function that starts the Go runtime is taken out of .init_array. front/start.c
# calls it when the first NIC is opened.
CGO_ENABLED=1 CC=$CC go build -pgo="${PGO:-bench/viaduct.pgo}" -tags libvipl -trimpath -buildmode=c-archive -o "$tmp/go.a" ./capi/vipl
(cd "$tmp" && mkdir go && cd go && ar x ../go.a)
objcopy --rename-section .init_array=vipl_go_start,alloc,load,data "$tmp/go/go.o"

# The C half.
flags="-std=gnu11 -O2 -g -fPIC -fvisibility=default -ftls-model=initial-exec -Wall -Wextra -Wno-unused-parameter -pthread"
objects=()
for c in capi/vipl/front/*.c; do
	o=$tmp/$(basename "${c%.c}").o
	# shellcheck disable=SC2086
	$CC $flags ${CFLAGS:-} -Icapi/vipl -c "$c" -o "$o"
	objects+=("$o")
done

# shellcheck disable=SC2086
$CC ${CFLAGS:-} -shared -pthread -o "$out/lib/libvipl.so.1" "${objects[@]}" "$tmp"/go/*.o \
	-Wl,-soname,libvipl.so.1 -Wl,--version-script=capi/vipl/vipl.map -Wl,-z,nodelete -Wl,--no-undefined \
	-Wl,-Bsymbolic -Wl,--build-id=none ${LDFLAGS:-} -lresolv 2>"$tmp/ld" || { cat "$tmp/ld" >&2; exit 1; }
# The names that programs link with and pass to dlopen.
for name in libvipl.so libgnivipl.so vipl.so; do ln -sf libvipl.so.1 "$out/lib/$name"; done

cp capi/vipl/vipl.h "$out/include/"
sed "s|@prefix@|${PREFIX:-$out}|" capi/vipl.pc.in >"$out/lib/pkgconfig/vipl.pc"
for m in capi/man/*.[1-9]; do
	[ -e "$m" ] || continue
	mkdir -p "$out/share/man/man${m##*.}"
	cp "$m" "$out/share/man/man${m##*.}/"
	# Each call of a page has a page of its name.
	page=$(basename "$m")
	sed -n '/^\.SH NAME/{n;s/ \\-.*//;s/, */\n/g;p;}' "$m" | while read -r name; do
		[ "$name.${m##*.}" = "$page" ] || echo ".so man${m##*.}/$page" >"$out/share/man/man${m##*.}/$name.${m##*.}"
	done
done
echo "$out/lib/libvipl.so.1"

#!/usr/bin/env bash
# Makes the Debian packages libvipl1 and libvipl-dev of this repository's libvipl:
#
#   capi/deb.sh [DIR]      DIR: where to, default dist
#
# Needs what capi/build.sh needs, and dpkg-deb; no network, no privileges.
# VERSION is that of the packages, default 1.0.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "${1:-dist}"
out=$(cd "${1:-dist}" && pwd)
for tool in dpkg dpkg-deb gzip strip; do
	command -v $tool >/dev/null || { echo "capi/deb.sh: $tool is missing" >&2; exit 1; }
done
version=${VERSION:-1.0}
arch=$(dpkg --print-architecture)
case $arch in
amd64) triplet=x86_64-linux-gnu ;;
arm64) triplet=aarch64-linux-gnu ;;
*) echo "capi/deb.sh: libvipl is for amd64 and arm64, not $arch" >&2; exit 1 ;;
esac
umask 022
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
PREFIX=/usr capi/build.sh "$tmp/built" >/dev/null
lib=usr/lib/$triplet

# control PACKAGE DEPENDS SECTION SUMMARY writes the control files of a package and builds it. The
# description of the package is on the standard input.
control() {
	local root=$tmp/$1
	mkdir -p "$root/DEBIAN" "$root/usr/share/doc/$1"
	printf 'Copyright: the Viaduct authors.\nLicense: Apache-2.0, see /usr/share/common-licenses/Apache-2.0.\n' >"$root/usr/share/doc/$1/copyright"
	gzip -9nc CHANGELOG.md >"$root/usr/share/doc/$1/changelog.gz"
	{
		printf 'Package: %s\nSource: viaduct\nVersion: %s\nArchitecture: %s\nMulti-Arch: same\n' "$1" "$version" "$arch"
		printf 'Maintainer: The Viaduct authors <viaduct@example.org>\nSection: %s\nPriority: optional\n' "$3"
		printf 'Depends: %s\nInstalled-Size: %s\nDescription: %s\n' "$2" "$(du -sk "$root/usr" | cut -f1)" "$4"
		sed 's/^/ /'
	} >"$root/DEBIAN/control"
	(cd "$root" && find usr -type f -exec md5sum {} +) >"$root/DEBIAN/md5sums"
	dpkg-deb --root-owner-group -b "$root" "$out/${1}_${version}_$arch.deb" >/dev/null
	echo "$out/${1}_${version}_$arch.deb"
}

mkdir -p "$tmp/libvipl1/$lib" "$tmp/libvipl-dev/$lib/pkgconfig" "$tmp/libvipl-dev/usr/include" "$tmp/libvipl-dev/usr/share"
strip --strip-unneeded -o "$tmp/libvipl1/$lib/libvipl.so.1" "$tmp/built/lib/libvipl.so.1"
chmod 644 "$tmp/libvipl1/$lib/libvipl.so.1"
# Old programs load libvipl by these names at run time.
for name in libgnivipl.so vipl.so; do ln -s libvipl.so.1 "$tmp/libvipl1/$lib/$name"; done
mkdir -p "$tmp/libvipl1/DEBIAN"
echo "libvipl 1 libvipl1 (>= $version)" >"$tmp/libvipl1/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$tmp/libvipl1/DEBIAN/triggers"
ln -s libvipl.so.1 "$tmp/libvipl-dev/$lib/libvipl.so"
cp "$tmp/built/include/vipl.h" "$tmp/libvipl-dev/usr/include/"
sed "s|^libdir=.*|libdir=\${prefix}/lib/$triplet|" "$tmp/built/lib/pkgconfig/vipl.pc" >"$tmp/libvipl-dev/$lib/pkgconfig/vipl.pc"
cp -r "$tmp/built/share/man" "$tmp/libvipl-dev/usr/share/"
find "$tmp/libvipl-dev/usr/share/man" -type f -exec gzip -9n {} +

control libvipl1 "libc6 (>= 2.34)" libs "VI Provider Library" <<'D'
The Virtual Interface Architecture's interface for C programs, over TCP and
FC-VI. This package has the library.
D
control libvipl-dev "libvipl1 (= $version)" libdevel "VI Provider Library, for development" <<'D'
The Virtual Interface Architecture's interface for C programs, over TCP and
FC-VI. This package has the header, the pkg-config file and the manual pages.
D

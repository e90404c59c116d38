#!/usr/bin/env bash
# Builds what is handed out of this repository's command into dist:
#
#   packaging/build.sh [deb|rpm ...]      default: both
#   packaging/build.sh stage              what goes into them, and no package
#
# A static binary, manual pages, completions, an SBOM (SPDX) and the packages.
# Needs Go, and the module proxy once, for nfpm; NFPM names one that is there.
# VERSION (default 0.0.0 and the commit) and ARCH (amd64 or arm64, default this
# machine's) are those of the packages. PGO is the profile that Go builds by, off is
# quicker to build. The same commit makes the same bytes, unless
# BUILDFLAGS (default -trimpath) says otherwise.
set -euo pipefail
cd "$(dirname "$0")/.."
BUILDFLAGS=${BUILDFLAGS--trimpath}
export ARCH=${ARCH:-$(go env GOARCH)} CGO_ENABLED=0
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
export VERSION=${VERSION:-0.0.0~git$commit}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH
umask 022
stage=packaging/stage
rm -rf "$stage"
mkdir -p "$stage/completion" dist

# shellcheck disable=SC2086
build() { go build -pgo="${PGO:-bench/viaduct.pgo}" $BUILDFLAGS -ldflags "-s -w -X viaduct/cmd/viaduct/internal/shell.version=$VERSION -X viaduct/cmd/viaduct/internal/shell.commit=$(git rev-parse HEAD 2>/dev/null)" -o "$1" ./cmd/viaduct; }
GOOS=linux GOARCH=$ARCH build "$stage/viaduct"
host=$stage/viaduct
if [ "$ARCH" != "$(go env GOHOSTARCH)" ] || [ "$(go env GOHOSTOS)" != linux ]; then # what it prints of itself is the same everywhere
	host=dist/host
	GOOS=$(go env GOHOSTOS) GOARCH=$(go env GOHOSTARCH) build "$host"
fi
"$host" man "$stage/man" >/dev/null
find "$stage/man" -type f -exec gzip -9n {} +
"$host" completion bash >"$stage/completion/viaduct.bash"
"$host" completion fish >"$stage/completion/viaduct.fish"
"$host" completion zsh >"$stage/completion/_viaduct"
gzip -9nc CHANGELOG.md >"$stage/changelog.gz"
GOOS='' GOARCH='' go run ./internal/tools/sbom -version "$VERSION" -o "$stage/viaduct.spdx.json" "$stage/viaduct"
find "$stage" -exec touch -d "@$SOURCE_DATE_EPOCH" {} +

[ "$*" != stage ] || exit 0
[ $# -gt 0 ] || set -- deb rpm
for format in "$@"; do
	# This release of nfpm is the last whose modules are all to be had.
	${NFPM:-env GOFLAGS=-mod=mod go run github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.41.0} package -f packaging/nfpm.yaml -p "$format" -t dist/
done

#!/usr/bin/env bash
# Installs the package in a clean Debian and uses it there as its users would:
#
#   packaging/try.sh dist/viaduct_VERSION_ARCH.deb [libvipl1.deb libvipl-dev.deb]
#
# With the packages of libvipl (capi/deb.sh) an example in C is compiled against them
# by what their pkg-config file says, with the compiler of this system, and run there.
# The Debian is made by mmdebstrap and booted with its own systemd by
# systemd-nspawn, without a network but its loopback. Needs both, and root; ROOT
# names a directory with a Debian (systemd, dbus and man-db in it) to copy instead.
# It takes a minute and a half, most of it for the Debian.
set -euo pipefail
examples=$(realpath "$(dirname "$0")/../examples/c")
deb=$(realpath "${1:?the package is missing: packaging/try.sh FILE.deb}")
shift
[ "$(id -u)" = 0 ] || { echo "packaging/try.sh: needs root" >&2; exit 1; }
for tool in mmdebstrap systemd-nspawn; do
	command -v $tool >/dev/null || { echo "packaging/try.sh: SKIPPED: $tool is missing" >&2; exit 0; }
done
tmp=$(mktemp -d)
trap 'rm -rf --one-file-system "$tmp"' EXIT
root=$tmp/root
if [ -n "${ROOT:-}" ]; then
	cp -a "$ROOT" "$root"
else
	timeout 1200 mmdebstrap --quiet --variant=apt --include=systemd,dbus,man-db bookworm "$root"
fi
cp "$deb" "$root/srv/viaduct.deb"
if [ $# -gt 0 ]; then
	cp "$@" "$root/srv/"
	timeout 600 systemd-nspawn --quiet -D "$root" --register=no --keep-unit --private-network --console=pipe \
		sh -c "apt-get install -y $(for f in "$@"; do printf '/srv/%s ' "$(basename "$f")"; done)" >"$tmp/vipl" 2>&1 </dev/null || { cat "$tmp/vipl"; exit 1; }
	if command -v cc >/dev/null && command -v pkg-config >/dev/null; then
		export PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
		PKG_CONFIG_LIBDIR=$(dirname "$root"/usr/lib/*/pkgconfig/vipl.pc)
		export PKG_CONFIG_LIBDIR
		# shellcheck disable=SC2046
		cc -O2 "$examples/pingpong.c" $(pkg-config --cflags --libs vipl) -o "$root/srv/pingpong"
	else
		echo "packaging/try.sh: SKIPPED: a program for libvipl: cc or pkg-config is missing" >&2
	fi
fi

cat >"$root/try" <<'END'
#!/bin/bash
# What a user does. Every command that fails ends the trial.
set -eEuo pipefail
trap 'echo "FAILED in line $LINENO: $BASH_COMMAND"; journalctl --no-pager -n 20 -u "viaduct*" || true' ERR
export HOME=/root LC_ALL=C.UTF-8 MANPAGER=cat MANWIDTH=80
cd /root

echo "== install"
apt-get install -y /srv/viaduct.deb >/tmp/apt 2>&1 || { cat /tmp/apt; false; }
viaduct version | sed -n 1p | tee /tmp/version
grep -qE 'commit [0-9a-f]{40}[,)]' /tmp/version

echo "== manual pages"
for page in 'viaduct 1' 'viaduct-serve 1' 'viaduct-portmap-serve 1' 'viaduct-urls 7'; do
	# shellcheck disable=SC2086
	set -- $page
	man --warnings "$2" "$1" >/tmp/page 2>/tmp/warnings
	[ ! -s /tmp/warnings ] || { cat /tmp/warnings; false; }
	grep -q "^DESCRIPTION" /tmp/page
	echo "$1($2): $(wc -l </tmp/page) lines"
done

echo "== alerts and dashboard"
grep -q '^groups:' /usr/share/viaduct/prometheus/viaduct.rules.yml
grep -q '"title": "Viaduct"' /usr/share/viaduct/grafana/viaduct.json

echo "== demo"
head -c 3000000 /dev/urandom >data
viaduct demo data

echo "== a service that systemd starts when something comes"
printf '[serve]\nwritable = true\n' >/etc/viaduct/serve-files.toml
viaduct config check /etc/viaduct/serve-files.toml
systemctl start viaduct-serve@files.socket
[ "$(systemctl show -P ActiveState viaduct-serve@files.service)" = inactive ]
viaduct put data vitcp://127.0.0.1/files/a/data
viaduct get vitcp://127.0.0.1/files/a/data -o copy
cmp data copy
for at in '[::1]' 127.0.0.2; do # the socket is at every address
	viaduct get "vitcp://$at/files/a/data" -o copy
	cmp data copy
done
[ "$(systemctl show -P ActiveState viaduct-serve@files.service)" = active ]
cmp data /var/lib/viaduct/files/a/data
systemctl show -p User -p Type -p MainPID viaduct-serve@files.service
pid=$(systemctl show -P MainPID viaduct-serve@files.service)
grep -E '^(NoNewPrivs|Seccomp|CapBnd):' "/proc/$pid/status"
[ "$(stat -c %u "/proc/$pid")" -ge 61184 ] # a user made for it

echo "== the watchdog"
mkdir -p /run/systemd/system/viaduct-serve@files.service.d
printf '[Service]\nWatchdogSec=2\n' >/run/systemd/system/viaduct-serve@files.service.d/soon.conf
systemctl daemon-reload
systemctl restart viaduct-serve@files.service
kill -STOP "$(systemctl show -P MainPID viaduct-serve@files.service)"
viaduct get vitcp://127.0.0.1/files/a/data -o again --wait 60s || viaduct get vitcp://127.0.0.1/files/a/data -o again --wait 60s
cmp data again
echo "restarts by systemd: $(systemctl show -P NRestarts viaduct-serve@files.service)"
[ "$(systemctl show -P NRestarts viaduct-serve@files.service)" -ge 1 ] # two seconds may be too few twice on a busy machine
rm /run/systemd/system/viaduct-serve@files.service.d/soon.conf
systemctl daemon-reload

echo "== the other services"
printf '[proxy]\nto = "sdp://127.0.0.1:5000"\n' >/etc/viaduct/proxy-8080.toml
printf 'log-level = "info"\n[fabric]\ndomain = 3\n' >/etc/viaduct/fabric.toml
viaduct config check /etc/viaduct/portmap.toml
echo '127.0.0.1:8080 127.0.0.1:5000' >>/etc/viaduct/portmap.conf
systemctl start viaduct-proxy@8080 viaduct-portmap viaduct-fabric
viaduct portmap query 127.0.0.1:8080
viaduct echo --listen sdp://127.0.0.1:5000 &
viaduct ping sdp://127.0.0.1:5000 -c 1 --wait 60s >/dev/null
viaduct ping tcp://127.0.0.1:8080 -c 3 -i 1ms
viaduct echo --listen 'fcvi://10.0.0.1/echo?fabric=127.0.0.1' &
viaduct ping 'fcvi://10.0.0.1/echo?fabric=127.0.0.1&self=10.0.0.2' -c 3 -i 1ms --wait 60s
for u in viaduct-serve@files viaduct-proxy@8080 viaduct-portmap viaduct-fabric; do
	systemd-analyze security --threshold=20 --no-pager $u.service | tail -n 1
done
[ "$(ls /usr/lib/systemd/system/viaduct-*.service | wc -l)" = 4 ]
for f in /usr/lib/systemd/system/viaduct-*.service; do
	echo "offline: $f"
	systemd-analyze --offline=true security --threshold=20 --no-pager "$f" | tail -n 1
done
journalctl --no-pager -u viaduct-fabric | grep -o 'listening fcip.*' # as its file has it, at level info

echo "== a token, as a credential of the service"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >/etc/viaduct/token
chmod 600 /etc/viaduct/token
mkdir -p /etc/systemd/system/viaduct-serve@files.service.d
printf '[Service]\nLoadCredential=token:/etc/viaduct/token\n' >/etc/systemd/system/viaduct-serve@files.service.d/token.conf
echo 'token-file = "/run/credentials/viaduct-serve@files.service/token"' >>/etc/viaduct/serve-files.toml
systemctl daemon-reload
systemctl restart viaduct-serve@files.service
viaduct put data vitcp://127.0.0.1/files/b --token-file /etc/viaduct/token
if viaduct put data vitcp://127.0.0.1/files/c; then false; fi

echo "== completion"
offers() { # the words that bash would offer for a line
	COMP_LINE=$1 COMP_POINT=${#1} COMPREPLY=()
	_viaduct 2>/dev/null || true # compopt wants a bash that reads a terminal
	echo "$1 -> ${COMPREPLY[*]}"
}
# shellcheck disable=SC1091
. /usr/share/bash-completion/completions/viaduct
offers "viaduct ping vi" | tee /tmp/c
grep -q vitcp /tmp/c
offers "viaduct ping sdp://127.0.0.1:" | tee /tmp/c
grep -q 5000 /tmp/c

if dpkg -s libvipl1 >/dev/null 2>&1; then
	echo "== a program in C, compiled against libvipl-dev"
	for call in VipOpenNic VipRecvDone; do # a page, and a name that leads to one
		man --warnings 3 $call >/tmp/page 2>/tmp/warnings
		[ ! -s /tmp/warnings ] || { cat /tmp/warnings; false; }
		grep -q "VIP_RETURN $call(" /tmp/page
	done
	[ -e /usr/share/doc/libvipl1/changelog.gz ]
	if [ -e /srv/pingpong ]; then
		systemctl stop viaduct-serve@files.socket viaduct-serve@files.service # its port is VIPL's
		timeout 60 /srv/pingpong /dev/via_lo server 200 &
		timeout 60 /srv/pingpong /dev/via_lo 127.0.0.1 200
		wait $!
	fi
	apt-get purge -y libvipl1 libvipl-dev >/tmp/apt 2>&1 || { cat /tmp/apt; false; }
	[ ! -e /usr/include/vipl.h ] && ! ls /usr/lib/*/libvipl* 2>/dev/null
fi

echo "== remove"
kill %1 %2
apt-get purge -y viaduct >/tmp/apt 2>&1 || { cat /tmp/apt; false; }
[ ! -e /usr/bin/viaduct ] && [ ! -e /usr/lib/systemd/system/viaduct-fabric.service ]
trap - ERR
echo "TRIED: all of it works"
END
chmod 755 "$root/try"
cat >"$root/etc/systemd/system/try.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh -c '/try >/try.log 2>&1 </dev/null; systemctl --no-block poweroff'
TimeoutStartSec=900
[Install]
WantedBy=default.target
END
systemctl --root="$root" --quiet enable try.service
timeout 1000 systemd-nspawn --quiet -D "$root" --register=no --keep-unit --private-network --console=pipe -b >"$tmp/boot" 2>&1 </dev/null || true
if [ ! -e "$root/try.log" ]; then
	tail -n 20 "$tmp/boot"
	echo "packaging/try.sh: the Debian did not boot" >&2
	exit 1
fi
cat "$root/try.log"
grep -q '^TRIED: all of it works$' "$root/try.log"

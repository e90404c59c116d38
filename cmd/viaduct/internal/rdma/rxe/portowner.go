package rxe

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"viaduct/internal/wire/ib"
)

// A portUser is the user of UDP port 4791 of an address. The kernel's rxe is recognized by a socket
// without a file.
type portUser struct {
	inode string // inode of the socket, "0" for a socket of the kernel
	uid   string
	pid   int // 0 if unknown
	name  string
}

// String describes the user for messages.
func (u portUser) String() string {
	switch {
	case u.inode == "0":
		return "the kernel's rxe"
	case u.pid != 0:
		return fmt.Sprintf("process %d (%s)", u.pid, u.name)
	}
	return "a process of user " + u.uid
}

// PortUser describes the user of UDP port 4791 of an address of this host. It returns "" if there
// is none, if the user is this process, or if the system does not show the user.
func PortUser(addr netip.Addr) string {
	for _, file := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		table, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		u, ok := findPortUser(string(table), addr)
		if !ok {
			continue
		}
		if u.inode != "0" {
			u.pid, u.name = socketHolder(u.inode)
		}
		if u.pid != os.Getpid() {
			return u.String()
		}
	}
	return ""
}

// findPortUser finds the socket that receives packets to port 4791 of an address. table has the
// format of /proc/net/udp and /proc/net/udp6.
func findPortUser(table string, addr netip.Addr) (u portUser, ok bool) {
	const local, uid, inode = 1, 7, 9 // fields of a line
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) <= inode {
			continue
		}
		at, err := parseSocketAddr(f[local])
		if err != nil || at.Port() != ib.Port || at.Addr() != addr && !at.Addr().IsUnspecified() {
			continue
		}
		return portUser{inode: f[inode], uid: f[uid]}, true
	}
	return u, false
}

// parseSocketAddr parses an address of /proc/net/udp: 32-bit words in native byte order, and the
// port.
func parseSocketAddr(s string) (netip.AddrPort, error) {
	words, port, _ := strings.Cut(s, ":")
	p, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	var b []byte
	for ; len(words) >= 8; words = words[8:] {
		w, err := strconv.ParseUint(words[:8], 16, 32)
		if err != nil {
			return netip.AddrPort{}, err
		}
		b = binary.NativeEndian.AppendUint32(b, uint32(w))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(p)), nil
}

// socketHolder returns a process with the socket open, or 0 if none can be found.
func socketHolder(inode string) (pid int, name string) {
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != "socket:["+inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
		pid, _ = strconv.Atoi(filepath.Base(dir))
		return pid, strings.TrimSpace(string(comm))
	}
	return 0, ""
}

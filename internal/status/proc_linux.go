package status

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// credentials returns the credentials of the process at the other end, from the moment when the
// process connected or began to listen. If the kernel reports none, credentials returns false.
func credentials(c net.Conn) (*unix.Ucred, bool) {
	rc, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return nil, false
	}
	var cred *unix.Ucred
	cerr := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, cerr == nil && err == nil
}

// allowed reports whether the process at the other end may read the report. Only processes of the
// user and of root may.
func allowed(c net.Conn) bool {
	cred, ok := credentials(c)
	return ok && (int(cred.Uid) == os.Getuid() || cred.Uid == 0)
}

// sentBy reports whether the socket at the other end belongs to process pid and to this user; root
// accepts the sockets of all users. An ID of 0 counts as equal, because the kernel reports 0 for a
// process of another PID namespace.
func sentBy(c net.Conn, pid int) bool {
	cred, ok := credentials(c)
	return ok && (int(cred.Uid) == os.Getuid() || os.Getuid() == 0) && (int(cred.Pid) == pid || cred.Pid == 0)
}

func isOurs(st os.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Getuid() && st.Mode().Perm()&0o077 == 0
}

// resident returns the resident memory of this process in bytes, or 0 if unknown.
func resident() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages uint64
	fmt.Sscan(string(b), &size, &pages)
	return pages * uint64(os.Getpagesize())
}

// programOf returns the command line of process pid, or "" if the command line cannot be read.
// programOf serves for processes that do not answer.
func programOf(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.TrimSpace(string(bytes.ReplaceAll(b, []byte{0}, []byte{' '})))
}

// tcpInfo returns the kernel's byte counters of a TCP connection. open is false if the connection
// is closed; the counters are 0 then.
func tcpInfo(c *net.TCPConn) (sent, received uint64, open bool) {
	rc, err := c.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	var i *unix.TCPInfo
	if rc.Control(func(fd uintptr) { i, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }) != nil {
		return 0, 0, false
	}
	if err != nil {
		return 0, 0, true
	}
	return i.Bytes_sent - i.Bytes_retrans, i.Bytes_received, true
}

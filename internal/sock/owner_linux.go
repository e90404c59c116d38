package sock

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// overflowUID is what the kernel shows for users that have no number in this
// namespace.
const overflowUID = 65534

// ownerOf returns the user that owns the socket whose TCP connection goes from local to
// remote. near is the other end of that connection: both are in its network namespace.
func ownerOf(near int, local, remote netip.AddrPort) (uid uint32, err error) {
	uid, err = ownerByDiag(near, local, remote)
	if err != nil && !errors.Is(err, unix.ENOENT) && err != errNamespace {
		uid, err = ownerByProc(local, remote)
	}
	if err == nil && uid == overflowUID {
		err = errors.New("its user has no number here")
	}
	return uid, err
}

// diag is a socket by which the kernel is asked about others of its network namespace. It
// is kept for the next question: most processes have one namespace for all time.
var diag struct {
	sync.Mutex
	fd     int // 0: none
	cookie uint64
	seq    uint32
}

var errNamespace = errors.New("sock: the connection is in another network namespace than this thread")

// soNetnsCookie is SO_NETNS_COOKIE, of Linux 5.14: a number of the network namespace of a
// socket that no other one has, until the system is started anew.
const soNetnsCookie = 71

// ownerByDiag asks the kernel for the one socket.
func ownerByDiag(near int, local, remote netip.AddrPort) (uint32, error) {
	want, err := unix.GetsockoptUint64(near, unix.SOL_SOCKET, soNetnsCookie)
	if err != nil { // an old kernel: the namespace of this thread is taken for it
		fd, err := openDiag()
		if err != nil {
			return 0, err
		}
		defer unix.Close(fd)
		return askDiag(fd, 1, local, remote)
	}
	diag.Lock()
	defer diag.Unlock()
	if diag.fd == 0 || diag.cookie != want {
		fd, err := openDiag()
		if err != nil {
			return 0, err
		}
		got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, soNetnsCookie)
		if err != nil || got != want {
			unix.Close(fd)
			return 0, errNamespace
		}
		closeDiag()
		diag.fd, diag.cookie = fd, got
	}
	diag.seq++
	uid, err := askDiag(diag.fd, diag.seq, local, remote)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		closeDiag() // something may be left in it
	}
	return uid, err
}

// closeDiag gives the socket back that is kept. diag is locked.
func closeDiag() {
	if diag.fd != 0 {
		unix.Close(diag.fd)
		diag.fd = 0
	}
}

func openDiag() (int, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	return fd, os.NewSyscallError("socket", err)
}

const (
	sockDiagByFamily = 20
	diagRequestLen   = 56 // inet_diag_req_v2
	diagMessageLen   = 72 // inet_diag_msg
	established      = 1
)

// askDiag sends a question and reads the answer.
func askDiag(fd int, seq uint32, local, remote netip.AddrPort) (uint32, error) {
	var b [unix.NLMSG_HDRLEN + diagRequestLen]byte
	h, r := b[:unix.NLMSG_HDRLEN], b[unix.NLMSG_HDRLEN:]
	binary.NativeEndian.PutUint32(h[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(h[4:], sockDiagByFamily)
	binary.NativeEndian.PutUint16(h[6:], unix.NLM_F_REQUEST)
	binary.NativeEndian.PutUint32(h[8:], seq)
	r[0], r[1] = unix.AF_INET6, unix.IPPROTO_TCP
	if local.Addr().Is4() {
		r[0] = unix.AF_INET
	}
	binary.NativeEndian.PutUint32(r[4:], 1<<established)
	binary.BigEndian.PutUint16(r[8:], local.Port())
	binary.BigEndian.PutUint16(r[10:], remote.Port())
	copy(r[12:28], local.Addr().AsSlice())
	copy(r[28:44], remote.Addr().AsSlice())
	for i := 48; i < 56; i++ {
		r[i] = 0xff // any cookie
	}
	if err := unix.Sendto(fd, b[:], 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("sendto", err)
	}
	var got [1024]byte
	n, _, err := unix.Recvfrom(fd, got[:], unix.MSG_DONTWAIT) // the kernel has answered by now
	if err != nil {
		return 0, os.NewSyscallError("recvfrom", err)
	}
	if n < unix.NLMSG_HDRLEN+4 {
		return 0, errors.New("sock: short answer about a socket")
	}
	if binary.NativeEndian.Uint32(got[8:]) != seq {
		return 0, errors.New("sock: answer to another question")
	}
	m := got[unix.NLMSG_HDRLEN:n]
	switch binary.NativeEndian.Uint16(got[4:]) {
	case unix.NLMSG_ERROR:
		return 0, unix.Errno(-int32(binary.NativeEndian.Uint32(m)))
	case sockDiagByFamily:
	default:
		return 0, errors.New("sock: strange answer about a socket")
	}
	if len(m) < diagMessageLen || m[1] != established {
		return 0, unix.ENOENT
	}
	if binary.BigEndian.Uint16(m[4:]) != local.Port() || binary.BigEndian.Uint16(m[6:]) != remote.Port() {
		return 0, errors.New("sock: answer about another socket")
	}
	if binary.NativeEndian.Uint32(m[68:]) == 0 {
		return 0, unix.ENOENT // no process has accepted it
	}
	return binary.NativeEndian.Uint32(m[64:]), nil
}

// ownerByProc looks the socket up in the lists of /proc, those of the namespace that this
// thread has, as ownerByDiag does.
func ownerByProc(local, remote netip.AddrPort) (uint32, error) {
	for _, name := range []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"} {
		f, err := os.Open(name)
		if err != nil {
			return 0, err
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			w := strings.Fields(s.Text())
			if len(w) < 10 || w[3] != "01" || w[9] == "0" || procAddr(w[1]) != local || procAddr(w[2]) != remote {
				continue
			}
			uid, err := strconv.ParseUint(w[7], 10, 32)
			return uint32(uid), err
		}
	}
	return 0, fmt.Errorf("sock: the owner of %v is not known: %w", local, unix.ENOENT)
}

// procAddr reads an address of those lists: words of four bytes, each as a number
// of this machine, in hex.
func procAddr(s string) netip.AddrPort {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	p, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(b)%4 != 0 {
		return netip.AddrPort{}
	}
	for i := 0; i < len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], binary.BigEndian.Uint32(b[i:]))
	}
	a, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a.Unmap(), uint16(p))
}

package frameio

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestResetIsNoEnd: a reset is reported as such although a write has consumed the kernel's report,
// so that the next read finds a plain end of stream.
func TestResetIsNoEnd(t *testing.T) {
	nc, peer := testkit.TCPPair(t)
	p := newFramed(nc, Options{})
	defer p.close(t)
	p.c.StartPolled(nil) // nothing reads
	if err := peer.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	peer.Close()
	// A write before the reset arrives would succeed, and nothing would report the reset later.
	testkit.Eventually(t, "the reset arrives", func() bool {
		v, err := unix.GetsockoptTCPInfo(p.c.sock.Load().FD(), unix.IPPROTO_TCP, unix.TCP_INFO)
		return err == nil && v.State != unix.BPF_TCP_ESTABLISHED
	})
	p.post([]byte{1})
	p.c.Kick()
	if err := testkit.Await(t, "the failure", p.failed); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("ended by %v", err)
	}
}

package frameio

import (
	"testing"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

// TestClosedDescriptorIsLeftAlone checks that neither role uses the descriptor number after Close,
// because the number may then belong to another file.
func TestClosedDescriptorIsLeftAlone(t *testing.T) {
	a, b := kinds[0].connect(t)
	a.c.Start(nil)
	done := b.expect(t, [][]byte{{1}})
	b.c.Start(nil)
	a.post([]byte{1})
	a.c.Kick()
	testkit.Await(t, "traffic", done)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_NONBLOCK|unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	fd := a.c.sock.Load().FD()
	a.c.Close()
	// A pipe gets the number of the closed descriptor.
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		unix.Close(p[1])
		t.Skip("another file has the number already")
	}
	if err := unix.Dup3(p[1], fd, unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	unix.Close(p[1])
	defer unix.Close(fd)
	a.c.tx.batch = batches.Get().(*Batch)
	copy(a.c.tx.batch.Header(5), "stray")
	a.c.tx.batch.close()
	if err := a.c.try(); err == nil {
		t.Error("a write after Close succeeds")
	}
	a.c.Poll()
	buf := make([]byte, 10)
	if n, err := unix.Read(p[0], buf); err != unix.EAGAIN {
		t.Errorf("%q was written to a file of another owner (%v)", buf[:max(n, 0)], err)
	}
}

//go:build linux && (amd64 || arm64)

package rdma

import (
	"log/slog"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/cmd/viaduct/internal/rdma/abi"
	"viaduct/internal/sock"
)

// If a part of the arena cannot be mapped, the next ring uses the part again, so that repeated
// commands do not make the file grow.
func TestArenaUnmapped(t *testing.T) {
	a, theirs, err := newArena(&ringQuota{most: 100})
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	defer unix.Close(theirs)
	// The program can add a seal, too.
	if _, err := unix.FcntlInt(uintptr(theirs), unix.F_ADD_SEALS, unix.F_SEAL_FUTURE_WRITE); err != nil {
		t.Skipf("SKIPPED: the kernel has no such seal: %v", err)
	}
	for range 3 {
		if _, _, err := a.ring(1); err == nil {
			t.Fatal("a sealed file was mapped")
		}
	}
	if a.size != pageSize {
		t.Errorf("the file has %d bytes, want those of one ring", a.size)
	}
}

// No ring has the offset NoKey, because NoKey means to the provider: there is no ring.
func TestArenaNoKey(t *testing.T) {
	for _, n := range []int{pageSize, abi.NoKey} {
		a, theirs, err := newArena(&ringQuota{most: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer a.close()
		defer unix.Close(theirs)
		end := int64(0)
		for end <= abi.NoKey {
			b, key, err := a.ring(n)
			if err != nil {
				t.Fatal(err)
			}
			if key == abi.NoKey || key < end {
				t.Errorf("a ring of %d bytes is at %#x, behind one that ends at %#x", n, key, end)
			}
			end = key + int64(len(b))
		}
	}
}

// An event for a destroyed identifier is not delivered. The event's connection request is refused.
func TestEventAfterDestroy(t *testing.T) {
	s := &Service{done: make(chan struct{}), files: map[inode]file{}}
	r, w, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r)
	f := &cmFile{s: s, w: w}
	id := &cmID{s: s, file: f, sock: -1}
	s.cm.add(id)
	if !f.post(&cmEvent{of: id}) || len(f.events) != 1 {
		t.Error("the event of a living identifier is not there")
	}
	id.destroy()
	if len(f.events) != 0 {
		t.Error("an event is left of an identifier that is destroyed")
	}
	if f.post(&cmEvent{of: id}) || len(f.events) != 0 {
		t.Error("an event came after the end of its identifier")
	}
	f.release()
}

// A device has at most the announced number of objects in all contexts together, and accepts new
// objects when others are gone.
func TestDeviceLimits(t *testing.T) {
	s := &Service{done: make(chan struct{}), files: map[inode]file{}, log: slog.New(slog.DiscardHandler)}
	d := newDevice(s, 0, Device{Name: "siw0"})
	context := func() *context {
		a, theirs, err := newArena(&ringQuota{most: 100})
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(theirs)
		return newContext(s, d, a)
	}
	x, y := context(), context()
	q := d.queryDevice()
	if most := q.U32(40 + 4*11); int32(most) != x.pds.most {
		t.Errorf("the device says max_pd %d, and has up to %d", most, x.pds.most)
	}
	x.pds.most, y.pds.most = 3, 3
	first, _ := x.pds.add(new(domain))
	x.pds.add(new(domain))
	if _, ok := y.pds.add(new(domain)); !ok {
		t.Error("no room for the third of three")
	}
	if _, ok := x.pds.add(new(domain)); ok {
		t.Error("the fourth of three")
	}
	x.pds.remove(first)
	x.pds.remove(first)
	if _, ok := y.pds.add(new(domain)); !ok {
		t.Error("no room after one has gone")
	}
	if _, ok := x.pds.add(new(domain)); ok {
		t.Error("one that went counted twice")
	}
	y.release()
	for range 2 {
		if _, ok := x.pds.add(new(domain)); !ok {
			t.Error("no room after a context has gone")
		}
	}
	x.release()
	if n := d.held.pds.Load(); n != 0 {
		t.Errorf("%d objects are left", n)
	}
}

// If no descriptor is free when an event is dropped, the event's byte stays in the pipe. The byte
// is removed as soon as a descriptor is free.
func TestCMSignalWithoutDescriptors(t *testing.T) {
	s := &Service{done: make(chan struct{}), files: map[inode]file{}}
	r, w, err := newPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(r)
	f := &cmFile{s: s, w: w}
	defer f.release()
	id := &cmID{s: s, file: f, sock: -1}
	s.cm.add(id)
	readable := func() bool {
		p := []unix.PollFd{{Fd: int32(r), Events: unix.POLLIN}}
		n, err := sock.Poll(p, 0)
		return err == nil && n == 1
	}
	f.post(&cmEvent{of: id})
	if !readable() {
		t.Fatal("an event does not show")
	}
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	id.destroy()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if !readable() {
		t.Error("the byte is gone: the test does not make descriptors scarce")
	}
	s.files[inode{1, 1}] = f
	s.sweeper = newSweeper()
	s.wg.Go(func() { s.sweeper.run(s.done, s.Sweep) })
	defer func() { close(s.done); s.wg.Wait() }()
	for end := time.Now().Add(patience); readable(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("there is no event, and the pipe says that there is one")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.files, inode{1, 1})
}

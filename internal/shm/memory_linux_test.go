package shm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"viaduct/internal/testkit"
)

func TestTwoMappings(t *testing.T) {
	before := Used()
	a, fd, err := Create(MinRing)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Open(fd, MinRing)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if got := Used() - before; got != 2*int64(total(MinRing)) {
		t.Errorf("%d bytes are used", got)
	}
	_, out := a.Ends(true)
	in, back := b.Ends(false)
	out.Wake, back.Wake, in.Wake = func() {}, func() {}, func() {}
	out.Write([]byte("there"))
	back.Write([]byte("and back"))
	buf := make([]byte, 20)
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "there" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	in, _ = a.Ends(true)
	in.Wake = func() {}
	if n, err := in.Read(buf); err != nil || string(buf[:n]) != "and back" {
		t.Errorf("%q, %v", buf[:n], err)
	}
	a.Close()
	a.Close()
	b.Close()
	if Used() != before {
		t.Errorf("%d bytes are used after the end", Used()-before)
	}
}

// TestForeignMemoryIsChecked: Open refuses a descriptor that is not sealed memory of the right
// size.
func TestForeignMemoryIsChecked(t *testing.T) {
	make := func(flags int, size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", flags)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if seals != 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
				t.Fatal(err)
			}
		}
		return fd
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	file.Truncate(int64(total(MinRing)))
	const sealing = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	size := int64(total(MinRing))
	for name, fd := range map[string]int{
		"a file":              int(file.Fd()),
		"not sealed":          make(sealing, size, 0),
		"may shrink":          make(sealing, size, unix.F_SEAL_GROW|unix.F_SEAL_SEAL),
		"may be sealed later": make(sealing, size, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK),
		"read only":           make(sealing, size, seals|unix.F_SEAL_WRITE),
		"too short":           make(sealing, size-1, seals),
		"too long":            make(sealing, size+1, seals),
		"empty":               make(sealing, 0, seals),
		"no descriptor":       -1,
	} {
		if m, err := Open(fd, MinRing); err == nil {
			m.Close()
			t.Errorf("%s: taken", name)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	good := make(sealing, size, seals)
	for _, ring := range []int{0, -1, MinRing + 1, MinRing / 2, MaxRing * 2, 1 << 62} {
		if _, err := Open(good, ring); err == nil {
			t.Errorf("a ring of %d bytes was taken", ring)
		}
	}
	if m, err := Open(good, MinRing); err != nil {
		t.Error(err)
	} else {
		m.Close()
	}
}

func TestMemoryIsBudgeted(t *testing.T) {
	SetLimit(Used() + int64(total(MinRing)))
	defer SetLimit(0)
	a, fd, err := Create(MinRing)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, _, err := Create(MinRing); !errors.Is(err, ErrExhausted) {
		t.Errorf("a second one: %v", err)
	}
	if _, err := Open(fd, MinRing); !errors.Is(err, ErrExhausted) {
		t.Errorf("a second mapping: %v", err)
	}
	a.Close()
	b, err := Open(fd, MinRing)
	if err != nil {
		t.Fatal(err)
	}
	b.Close()
}

// TestGrowth: a ring grows, within the limit, when bytes pass fast and writes wait for room, and
// shrinks and returns the memory when few bytes pass.
func TestGrowth(t *testing.T) {
	before := Used()
	m, fd, err := Create(DefaultRing)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	_, p := m.Ends(true)
	o, err := Open(fd, m.Ring())
	if err != nil {
		t.Fatal(err)
	}
	q, _ := o.Ends(false)
	p.Wake, q.Wake = func() {}, func() {}
	b := make([]byte, DefaultRing)
	pass := func(n int) { // passes n bytes as fast as possible and waits for room
		for n > 0 {
			p.grow.since = time.Now() // makes the ring grow on slow machines too
			k, err := p.Write(b[:min(n, len(b))])
			if err != nil && err != ErrWouldBlock {
				t.Fatal(err)
			}
			n -= k
			for _, err = q.Read(b); err == nil; _, err = q.Read(b) {
			}
			if err != ErrWouldBlock {
				t.Fatal(err)
			}
		}
	}
	SetLimit(Used() + FirstRing)
	defer SetLimit(0)
	pass(20 * FirstRing)
	if p.ring != FirstRing || Used() != before+2*first(DefaultRing) {
		t.Errorf("a ring of %d bytes, %d more are accounted for, without a budget", p.ring, Used()-before)
	}
	SetLimit(0)
	pass(30 * DefaultRing)
	if p.ring != DefaultRing || q.ring != DefaultRing || Used() != before+2*first(DefaultRing)+DefaultRing-FirstRing {
		t.Errorf("rings of %d and %d bytes, %d more are accounted for", p.ring, q.ring, Used()-before)
	}
	p.Write(b[:1])
	shrinkCalm()
	shrinkCalm()
	if p.ring != DefaultRing {
		t.Error("a ring with something in it has shrunk")
	}
	q.Read(b)
	big := resident(fd)
	shrinkCalm()
	if small := resident(fd); p.ring != smallRing || Used() != before+2*first(DefaultRing) ||
		small > big-DefaultRing/2 {
		t.Errorf("a calm ring of %d bytes, %d more are accounted for, %d resident, %d before",
			p.ring, Used()-before, small, big)
	}
	p.Write([]byte("and on"))
	if n, err := q.Read(b); string(b[:n]) != "and on" || q.ring != smallRing {
		t.Errorf("%q, %v", b[:n], err)
	}
	pass(30 * DefaultRing)
	m.Close()
	o.Close()
	if Used() != before {
		t.Errorf("%d bytes are accounted for after the end", Used()-before)
	}
}

// TestCalmRingsShrink: the timer runs again until all rings that have grown are small.
func TestCalmRingsShrink(t *testing.T) {
	p, q, _ := pair(4 * FirstRing)
	p.grow.due = true
	p.Write(pattern[:FirstRing])
	for n := 0; n < FirstRing; {
		k, err := q.Read(make([]byte, FirstRing))
		if err != nil {
			t.Fatal(err)
		}
		n += k
	}
	var l large
	l.add(p)
	testkit.Eventually(t, "the ring is small", func() bool {
		l.Lock()
		defer l.Unlock()
		return len(l.list) == 0 && !l.armed
	})
	if p.ring != FirstRing || p.grow.large.Load() {
		t.Errorf("a ring of %d bytes", p.ring)
	}
	p.disown()
}

// resident returns the number of bytes of the file fd that have memory.
func resident(fd int) int64 {
	var st unix.Stat_t
	unix.Fstat(fd, &st)
	return st.Blocks * 512
}

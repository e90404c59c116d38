package regmem

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/testkit"
)

// TestDeregisterWaitsForPins checks that new accesses fail as soon as Deregister is called, and
// that Deregister returns when the last pin is released.
func TestDeregisterWaitsForPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := New(Limits{})
		r := register(t, g, 100, Options{})
		w, err := g.Bind(r, 0, 10, Options{Rights: RemoteRead})
		if err != nil {
			t.Fatal(err)
		}
		a, _ := g.Access(r.Handle(), r.Base(), 10, nil, nil, LocalRead)
		b, _ := g.Access(w.Handle(), w.Base(), 10, nil, nil, RemoteRead)
		c, _ := g.Access(w.Handle(), w.Base(), 1, nil, nil, RemoteRead)
		closed := func(r *Region) <-chan error {
			done := make(chan error, 1)
			go func() { done <- g.Deregister(r) }()
			synctest.Wait()
			return done
		}
		pending := func(done <-chan error, refs ...Ref) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-done:
				t.Errorf("Deregister returned %v with pins", err)
			default:
			}
			for _, ref := range refs {
				if !ref.Closing() {
					t.Error("a pin does not tell that Deregister waits for it")
				}
			}
		}
		over := func(done <-chan error) {
			t.Helper()
			synctest.Wait()
			select {
			case err := <-done:
				if err != nil {
					t.Error(err)
				}
			default:
				t.Error("Deregister does not wait for the pin")
			}
		}
		done := closed(w)
		pending(done, b, c)
		if _, out := w.Access(w.Base(), 1, nil, nil, RemoteRead); out != NoRegion {
			t.Errorf("access during deregistration: %v", out)
		}
		b.Release()
		pending(done, c)
		c.Release()
		over(done)
		if a.Closing() {
			t.Error("no Deregister waits for the region itself")
		}
		done = closed(r)
		pending(done, a)
		if out := g.Check(r.Handle(), r.Base(), 1, nil, nil, LocalRead); out != NoRegion {
			t.Errorf("check during deregistration: %v", out)
		}
		if err := g.Deregister(r); !errors.Is(err, ErrNoRegion) {
			t.Errorf("twice at once: %v", err)
		}
		a.Release()
		over(done)
		Ref{}.Release()
	})
}

// A holder is a sender keeping a pin while waiting for the peer.
type holder struct {
	mu    sync.Mutex
	ref   Ref
	asked atomic.Int32
}

func (h *holder) Relinquish() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked.Add(1)
	h.ref.Release()
	h.ref = Ref{}
}

// TestDeregisterDoesNotWaitForHolders checks that a stalled peer does not block Deregister, because
// Deregister asks the holder to release the pin.
func TestDeregisterDoesNotWaitForHolders(t *testing.T) {
	g := New(Limits{})
	r := register(t, g, 100, Options{})
	var hs [3]holder
	for i := range hs {
		hs[i].ref, _ = g.Access(r.Handle(), r.Base(), 10, nil, nil, LocalRead)
		g.AddHolder(&hs[i])
	}
	other := &holder{}
	g.AddHolder(other)
	g.RemoveHolder(other)
	done := make(chan error, 1)
	go func() { done <- g.Deregister(r) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testkit.Patience):
		t.Fatal("Deregister waits for a holder")
	}
	for i := range hs {
		if n := hs[i].asked.Load(); n != 1 {
			t.Errorf("holder %d was asked %d times", i, n)
		}
	}
	if other.asked.Load() != 0 {
		t.Error("a holder without pins was asked")
	}
	// Deregister asks no holder if the region has no pins.
	if err := g.Deregister(register(t, g, 1, Options{})); err != nil || hs[0].asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, hs[0].asked.Load())
	}
}

// TestConcurrently registers, binds, uses, changes and deregisters from many goroutines. After
// Deregister the calling goroutine alone owns the memory: the race detector and a pattern detect
// any later access.
func TestConcurrently(t *testing.T) {
	g := New(Limits{})
	var wg sync.WaitGroup
	var handles [16]atomic.Uint32 // handles of current and of deregistered regions, which the users try
	var stop atomic.Bool
	domain := NewDomain()
	for k := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(k)))
			mem := make([]byte, 256)
			for range 300 {
				r, err := g.Register(mem, Options{Rights: RemoteWrite, Domain: domain, ZeroBased: true})
				if err != nil {
					t.Error(err)
					return
				}
				at := 4*k + rnd.IntN(4)
				handles[at].Store(r.Handle())
				if rnd.IntN(3) == 0 {
					w, err := g.Bind(r, 0, 64, Options{Rights: RemoteWrite, Domain: domain, ZeroBased: true})
					if err != nil {
						t.Error(err)
						return
					}
					handles[at].Store(w.Handle())
					if err := g.Deregister(r); !errors.Is(err, ErrBusy) {
						t.Errorf("with a window: %v", err)
					}
					if err := g.Deregister(w); err != nil {
						t.Error(err)
					}
				}
				g.SetAttributes(r, RemoteWrite|RemoteRead, domain, nil)
				if err := g.Deregister(r); err != nil {
					t.Error(err)
				}
				for i := range mem { // Deregister has returned, so no other goroutine may access mem
					mem[i] = 0xee
				}
				if r.state.Load() != closing {
					// Failing attempts to pin the region may change the count for a moment.
					time.Sleep(time.Microsecond)
				}
			}
		})
	}
	var users sync.WaitGroup
	var mus [256]sync.Mutex // each user locks the bytes that it uses, because users would race with each other otherwise
	for k := range 3 {
		users.Go(func() {
			rnd := rand.New(rand.NewPCG(2, uint64(k)))
			for !stop.Load() {
				h := handles[rnd.IntN(len(handles))].Load()
				mus[h%256].Lock()
				ref, out := g.Access(h, uint64(rnd.IntN(32)), 32, domain, nil, RemoteWrite)
				if out == OK {
					if RegionOf(ref).Parent() == nil { // a window's memory is also its region's
						for i := range ref.B() {
							ref.B()[i] = byte(i)
						}
					}
					ref.Release()
				} else if out != NoRegion {
					t.Errorf("access: %v", out)
				}
				mus[h%256].Unlock()
			}
		})
	}
	wg.Wait()
	stop.Store(true)
	users.Wait()
	if g.Count() != 0 {
		t.Errorf("%d regions are left", g.Count())
	}
}

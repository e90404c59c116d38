package queue

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"viaduct/internal/attend"
	"viaduct/internal/testkit"
)

// workModel is a work queue as plain slices.
type workModel struct {
	reqs                    []int  // all requests ever posted
	finished                []bool // whether each request is finished
	started, done, reaped   int
	reported, wantsReported []int // requests reported by OnDone: actual and expected
}

func (m *workModel) advance() (n int) {
	for m.done < len(m.reqs) && m.finished[m.done] {
		m.wantsReported = append(m.wantsReported, m.reqs[m.done])
		m.done++
		n++
	}
	m.started = max(m.started, m.done)
	return n
}

func TestWorkAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &workModel{}
		w := &Work[int]{Limit: rapid.SampledFrom([]int{0, 1, 3, 20}).Draw(t, "limit")}
		w.OnDone = func(v int) { m.reported = append(m.reported, v) }
		next := 0
		finish := func(first, end int) {
			for i := max(first, m.done); i < min(end, len(m.reqs)); i++ {
				m.finished[i] = true
			}
			if got, want := w.FinishRange(uint64(first), uint64(end)), m.advance(); got != want {
				t.Fatalf("finishing %d to %d made %d done, want %d", first, end, got, want)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"post": func(t *rapid.T) {
				seq, err := w.Post(next)
				if w.Limit > 0 && len(m.reqs)-m.reaped >= w.Limit {
					if !errors.Is(err, ErrFull) {
						t.Fatalf("posted to a full queue: %v", err)
					}
					return
				}
				if err != nil || seq != uint64(len(m.reqs)) {
					t.Fatalf("posted as %d, %v; want %d", seq, err, len(m.reqs))
				}
				m.reqs = append(m.reqs, next)
				m.finished = append(m.finished, false)
				next++
			},
			"peek and start": func(t *rapid.T) {
				pv, pseq, pok := w.Peek()
				v, seq, ok := w.Start()
				if pv != v || pseq != seq || pok != ok {
					t.Fatalf("peeked %d, %d, %t, started %d, %d, %t", pv, pseq, pok, v, seq, ok)
				}
				if ok != (m.started < len(m.reqs)) || ok && (v != m.reqs[m.started] || seq != uint64(m.started)) {
					t.Fatalf("started %d, %d, %t", v, seq, ok)
				}
				if ok {
					m.started++
				}
			},
			"post and start": func(t *rapid.T) {
				seq, ok := w.PostStarted(next)
				full := w.Limit > 0 && len(m.reqs)-m.reaped >= w.Limit
				if want := !full && m.started == len(m.reqs); ok != want || ok && seq != uint64(len(m.reqs)) {
					t.Fatalf("posted as %d: %t, want %t as %d", seq, ok, want, len(m.reqs))
				}
				if ok {
					m.reqs = append(m.reqs, next)
					m.finished = append(m.finished, false)
					m.started++
					next++
				}
			},
			"post many": func(t *rapid.T) {
				var vs []int
				for range rapid.IntRange(0, 6).Draw(t, "n") {
					vs = append(vs, next)
					next++
				}
				n, err := w.PostN(vs)
				want := len(vs)
				if w.Limit > 0 {
					want = min(want, w.Limit-(len(m.reqs)-m.reaped))
				}
				if n != want || errors.Is(err, ErrFull) != (n < len(vs)) {
					t.Fatalf("posted %d of %d, %v; want %d", n, len(vs), err, want)
				}
				m.reqs = append(m.reqs, vs[:n]...)
				m.finished = append(m.finished, make([]bool, n)...)
			},
			"peek many and start some": func(t *rapid.T) {
				buf := make([]int, rapid.IntRange(0, 5).Draw(t, "n"))
				n, first := w.PeekN(buf)
				want := m.reqs[m.started:min(len(m.reqs), m.started+len(buf))]
				if !slices.Equal(buf[:n], want) || first != uint64(m.started) {
					t.Fatalf("peeked %v from %d, want %v", buf[:n], first, want)
				}
				for range rapid.IntRange(0, n).Draw(t, "start") {
					w.MarkStarted(uint64(m.started))
					m.started++
				}
			},
			"start many": func(t *rapid.T) {
				buf := make([]int, rapid.IntRange(0, 5).Draw(t, "n"))
				n, first := w.StartN(buf)
				want := m.reqs[m.started:min(len(m.reqs), m.started+len(buf))]
				if !slices.Equal(buf[:n], want) || first != uint64(m.started) {
					t.Fatalf("started %v from %d, want %v", buf[:n], first, want)
				}
				m.started += n
			},
			"finish": func(t *rapid.T) {
				// Finishing a finished or never posted request has no effect.
				seq := rapid.IntRange(0, len(m.reqs)+1).Draw(t, "seq")
				finish(seq, seq+1)
			},
			"finish range": func(t *rapid.T) {
				first := rapid.IntRange(0, len(m.reqs)+1).Draw(t, "first")
				finish(first, first+rapid.IntRange(0, 5).Draw(t, "n"))
			},
			"update": func(t *rapid.T) {
				seq := rapid.IntRange(0, len(m.reqs)+1).Draw(t, "seq")
				can := seq >= m.done && seq < len(m.reqs) && !m.finished[seq]
				if got := w.Update(uint64(seq), func(v *int) { *v += 1000000 }); got != can {
					t.Fatalf("update of %d: %t", seq, got)
				}
				if can {
					m.reqs[seq] += 1000000
				}
			},
			"flush": func(t *rapid.T) {
				var flushed, want []int
				n := w.Flush(func(v *int, started bool) {
					if at := slices.Index(m.reqs, *v); started != (at < m.started) {
						t.Fatalf("request %d: started %t", at, started)
					}
					flushed = append(flushed, *v)
				})
				for i := m.done; i < len(m.reqs); i++ {
					if !m.finished[i] {
						want = append(want, m.reqs[i])
						m.finished[i] = true
					}
				}
				if !slices.Equal(flushed, want) {
					t.Fatalf("flushed %v, want %v", flushed, want)
				}
				if want := m.advance(); n != want {
					t.Fatalf("flush made %d done, want %d", n, want)
				}
			},
			"reap": func(t *rapid.T) {
				v, h := w.Reap()
				switch {
				case m.reaped < m.done:
					if h != Done || v != m.reqs[m.reaped] {
						t.Fatalf("reaped %d, %d, want %d", v, h, m.reqs[m.reaped])
					}
					m.reaped++
				case m.reaped < len(m.reqs):
					if h != NotDone {
						t.Fatalf("reaped %d, %d, want NotDone", v, h)
					}
				case h != Empty:
					t.Fatalf("reaped %d, %d, want Empty", v, h)
				}
			},
			"": func(t *rapid.T) {
				want := Counts{uint64(len(m.reqs)), uint64(m.started), uint64(m.done), uint64(m.reaped)}
				if got := w.Counts(); got != want {
					t.Fatalf("counts %+v, want %+v", got, want)
				}
				if !slices.Equal(m.reported, m.wantsReported) {
					t.Fatalf("OnDone saw %v, want %v", m.reported, m.wantsReported)
				}
			},
		})
	})
}

func TestWaitEnds(t *testing.T) {
	type result struct {
		v   int
		h   Head
		err error
	}
	wait := func(ctx context.Context, w *Work[int]) chan result {
		c := make(chan result, 1)
		go func() {
			v, h, err := w.Wait(ctx, nil)
			c <- result{v, h, err}
		}()
		synctest.Wait() // the goroutine is asleep or finished
		return c
	}
	post := func(t *testing.T, vs ...int) *Work[int] {
		w := new(Work[int])
		for _, v := range vs {
			if _, err := w.Post(v); err != nil {
				t.Fatal(err)
			}
		}
		return w
	}
	bg := context.Background()
	for name, f := range map[string]func(t *testing.T){
		"at once on an empty queue": func(t *testing.T) {
			if r := <-wait(bg, post(t)); r.h != Empty || r.err != nil {
				t.Errorf("%+v", r)
			}
		},
		"at once on a finished head, whatever the context": func(t *testing.T) {
			w := post(t, 7)
			w.Finish(0)
			ctx, cancel := context.WithCancel(bg)
			cancel()
			if r := <-wait(ctx, w); r != (result{7, Done, nil}) {
				t.Errorf("%+v", r)
			}
		},
		"when the head is done, not one behind it": func(t *testing.T) {
			w := post(t, 1, 2)
			c := wait(bg, w)
			w.Finish(1)
			synctest.Wait()
			select {
			case r := <-c:
				t.Errorf("ended early: %+v", r)
			default:
			}
			w.Finish(0)
			if r := <-c; r != (result{1, Done, nil}) {
				t.Errorf("%+v", r)
			}
		},
		"by a flush": func(t *testing.T) {
			w := post(t, 1)
			c := wait(bg, w)
			w.Flush(func(v *int, _ bool) { *v = -1 })
			if r := <-c; r != (result{-1, Done, nil}) {
				t.Errorf("%+v", r)
			}
		},
		"by its deadline": func(t *testing.T) {
			ctx, cancel := context.WithTimeout(bg, testkit.Patience)
			defer cancel()
			begin := time.Now()
			r := <-wait(ctx, post(t, 1))
			if !errors.Is(r.err, context.DeadlineExceeded) || time.Since(begin) != time.Minute {
				t.Errorf("%+v after %v", r, time.Since(begin))
			}
		},
		"with the cause of its context": func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(bg)
			c := wait(ctx, post(t, 1))
			why := errors.New("because")
			cancel(why)
			if r := <-c; r.err != why {
				t.Errorf("%+v", r)
			}
		},
		"when another waiter takes the last request": func(t *testing.T) {
			w := post(t, 1)
			a, b := wait(bg, w), wait(bg, w)
			w.Finish(0)
			synctest.Wait()
			x, y := <-a, <-b
			if x.h == Empty {
				x, y = y, x
			}
			if x != (result{1, Done, nil}) || y.h != Empty || y.err != nil {
				t.Errorf("%+v, %+v", x, y)
			}
		},
		"one waiter for each request": func(t *testing.T) {
			w := post(t, 1, 2, 3)
			cs := []chan result{wait(bg, w), wait(bg, w), wait(bg, w)}
			for i := range 3 {
				w.Finish(uint64(i))
				synctest.Wait()
				// The first waiter gets the first result.
				if r := <-cs[i]; r != (result{i + 1, Done, nil}) {
					t.Errorf("waiter %d: %+v", i, r)
				}
			}
		},
		"with a result that comes while it gives up": func(t *testing.T) {
			for range 20 {
				w := post(t, 1)
				ctx, cancel := context.WithCancel(bg)
				c := wait(ctx, w)
				w.mu.Lock()
				cancel()
				for range 100 {
					runtime.Gosched() // the waiter has seen the request and waits for the lock
				}
				w.at(0).finished = true
				w.advanceLocked()
				w.mu.Unlock()
				if r := <-c; r != (result{1, Done, nil}) {
					t.Fatalf("%+v", r)
				}
			}
		},
		"a wake-up that came too late goes on": func(t *testing.T) {
			// The first waiter is woken and cancelled at the same moment: either it takes the
			// result, or the next waiter does.
			for range 50 {
				w := post(t, 1, 2)
				ctx, cancel := context.WithCancel(bg)
				a := wait(ctx, w)
				b := wait(bg, w)
				go cancel()
				go w.Finish(0)
				synctest.Wait()
				cancel()
				if x := <-a; x.err == nil {
					w.Finish(1)
				}
				if y := <-b; y.h != Done {
					t.Fatalf("the second waiter: %+v", y)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
	}
}

// progress is the connection of a queue. It counts the calls of Poll and Unpoll.
type progress struct {
	poll           func() bool
	polls, unpolls int
}

func (p *progress) Poll() bool { p.polls++; return p.poll() }
func (p *progress) Unpoll()    { p.unpolls++ }

func TestWaitPolls(t *testing.T) {
	on(t, 2)
	t.Run("on one processor it sleeps at once", func(t *testing.T) {
		on(t, 1)
		synctest.Test(t, func(t *testing.T) {
			var w Work[int]
			w.Post(1)
			p := &progress{}
			done := make(chan struct{})
			go func() { w.Wait(context.Background(), p); close(done) }()
			synctest.Wait()
			if p.unpolls != 1 || p.polls != 0 {
				t.Errorf("%d polls, %d unpolls", p.polls, p.unpolls)
			}
			w.Finish(0)
			<-done
		})
	})
	t.Run("the poll brings the result", func(t *testing.T) {
		var w Work[int]
		w.Post(1)
		p := &progress{poll: func() bool { w.Finish(0); return true }}
		v, h, err := w.Wait(context.Background(), p)
		if v != 1 || h != Done || err != nil || p.polls != 1 || p.unpolls != 0 {
			t.Errorf("%d, %d, %v after %d polls, %d unpolls", v, h, err, p.polls, p.unpolls)
		}
	})
	t.Run("no result: it unpolls before it sleeps", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var w Work[int]
			w.Post(1)
			p := &progress{poll: func() bool { time.Sleep(time.Microsecond); return false }}
			done := make(chan struct{})
			go func() { w.Wait(context.Background(), p); close(done) }()
			time.Sleep(time.Second)
			synctest.Wait()
			if p.unpolls != 1 || p.polls == 0 || p.polls > 40 {
				t.Errorf("%d polls, %d unpolls", p.polls, p.unpolls)
			}
			w.Finish(0)
			<-done
		})
	})
	t.Run("a result that is there is not polled for", func(t *testing.T) {
		var w Work[int]
		w.Post(1)
		w.Finish(0)
		p := &progress{}
		if _, h, _ := w.Wait(context.Background(), p); h != Done || p.polls+p.unpolls > 0 {
			t.Errorf("%d after %d polls", h, p.polls)
		}
	})
	// Other traffic of a busy connection must not extend the wait beyond the deadline.
	t.Run("other traffic for ever", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for name, wait := range map[string]func(context.Context, attend.Progress) error{
				"work": func(ctx context.Context, p attend.Progress) error {
					var w Work[int]
					w.Post(1)
					_, _, err := w.Wait(ctx, p)
					return err
				},
				"completions": func(ctx context.Context, p attend.Progress) error {
					_, err := NewCompletions[int](1).Wait(ctx, p)
					return err
				},
			} {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				p := &progress{poll: func() bool { time.Sleep(time.Millisecond); return true }}
				begin := time.Now()
				err := wait(ctx, p)
				cancel()
				if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) ||
					took > 1100*time.Millisecond {
					t.Errorf("%s: %v after %v", name, err, took)
				}
			}
		})
	})
}

// TestWorkConcurrently runs concurrently: posters, an engine that finishes requests out of order,
// occasional flushes, and consumers of both kinds. Every request must be reaped once.
func TestWorkConcurrently(t *testing.T) {
	const posters, each = 4, 2000
	w := &Work[int]{Limit: 64}
	var wg, consumers sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for i := range each {
				for {
					if _, err := w.Post(p*each + i); err == nil {
						break
					}
					time.Sleep(10 * time.Microsecond)
				}
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	engine := make(chan struct{})
	go func() {
		defer close(engine)
		buf := make([]int, 5)
		for ctx.Err() == nil {
			n, first := w.StartN(buf)
			for i := n - 1; i >= 0; i-- {
				w.Finish(first + uint64(i))
			}
			if first%97 == 0 {
				w.Flush(func(*int, bool) {})
			}
			if n == 0 {
				time.Sleep(10 * time.Microsecond)
			}
		}
	}()
	var mu sync.Mutex
	var got []int
	for c := range 3 {
		consumers.Go(func() {
			for ctx.Err() == nil {
				var v int
				var h Head
				if c == 0 {
					v, h = w.Reap()
				} else {
					v, h, _ = w.Wait(ctx, nil)
				}
				if h != Done {
					time.Sleep(10 * time.Microsecond)
					continue
				}
				mu.Lock()
				if got = append(got, v); len(got) == posters*each {
					cancel()
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	select {
	case <-ctx.Done():
	case <-time.After(testkit.Patience):
		t.Error("requests are missing")
		cancel()
	}
	consumers.Wait()
	<-engine
	slices.Sort(got)
	for i, v := range got {
		if v != i {
			t.Fatalf("request %d at place %d", v, i)
		}
	}
}

func TestWorkDoesNotAllocate(t *testing.T) {
	w := &Work[*int]{OnDone: func(*int) {}}
	x := new(int)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		for range 5 {
			w.Post(x)
		}
		w.Peek()
		for range 5 {
			_, seq, _ := w.Start()
			w.Finish(seq)
		}
		for range 4 {
			w.Reap()
		}
		w.Wait(ctx, nil)
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func BenchmarkWork(b *testing.B) {
	b.Run("post start finish reap", func(b *testing.B) {
		var w Work[*int]
		x := new(int)
		b.ReportAllocs()
		for b.Loop() {
			w.Post(x)
			_, seq, _ := w.Start()
			w.Finish(seq)
			w.Reap()
		}
	})
	b.Run("hand-over to a waiter", func(b *testing.B) {
		var w Work[*int]
		x := new(int)
		w.Post(x)
		go func() {
			for i := range uint64(b.N) {
				w.Post(x)
				w.Finish(i)
			}
		}()
		b.ReportAllocs()
		for range b.N {
			w.Wait(context.Background(), nil)
		}
	})
}

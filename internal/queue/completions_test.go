package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"viaduct/internal/testkit"
)

func TestCompletionsAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 20).Draw(t, "capacity")
		c := NewCompletions[int](capacity)
		var (
			model            []int // entries in the queue
			registered       int
			served, expected []int // values passed by registrations: actual and expected
			closed           bool
			next             int
		)
		add := func(e int) {
			switch {
			case closed:
			case registered > 0:
				registered--
				expected = append(expected, e)
			default:
				model = append(model, e)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": func(t *rapid.T) {
				c.Push(next)
				add(next)
				next++
			},
			"push n": func(t *rapid.T) {
				n := rapid.IntRange(0, 12).Draw(t, "n")
				c.PushN(next, n)
				for range n {
					add(next)
				}
				next++
			},
			"push all": func(t *rapid.T) {
				var es []int
				for range rapid.IntRange(0, 12).Draw(t, "n") {
					es = append(es, next)
					add(next)
					next++
				}
				c.PushAll(es)
			},
			"poll": func(t *rapid.T) {
				e, ok := c.Poll()
				if ok != (len(model) > 0) || ok && e != model[0] {
					t.Fatalf("polled %d, %t, want %v", e, ok, model)
				}
				if ok {
					model = model[1:]
				}
			},
			"poll n": func(t *rapid.T) {
				buf := make([]int, rapid.IntRange(0, 5).Draw(t, "n"))
				n := c.PollN(buf)
				if want := model[:min(len(buf), len(model))]; !slices.Equal(buf[:n], want) {
					t.Fatalf("polled %v, want %v", buf[:n], want)
				}
				model = model[n:]
			},
			"wait": func(t *rapid.T) {
				ctx, cancel := context.WithCancel(context.Background())
				cancel()
				e, err := c.Wait(ctx, nil)
				switch {
				case len(model) > 0:
					if err != nil || e != model[0] {
						t.Fatalf("waited for %d, %v, want %d", e, err, model[0])
					}
					model = model[1:]
				case closed && err != ErrClosed, !closed && err != context.Canceled:
					t.Fatalf("waited: %v", err)
				}
			},
			"notify": func(t *rapid.T) {
				err := c.Notify(func(e int) { served = append(served, e) })
				switch {
				case closed:
					if err != ErrClosed {
						t.Fatal(err)
					}
				case len(model) > 0:
					expected = append(expected, model[0])
					model = model[1:]
				default:
					registered++
				}
			},
			"resize": func(t *rapid.T) {
				n := rapid.IntRange(0, 30).Draw(t, "n")
				err := c.Resize(n)
				if errors.Is(err, ErrCapacity) != (len(model) > n) {
					t.Fatalf("resized to %d with %d present: %v", n, len(model), err)
				}
				if err == nil {
					capacity = n
				}
			},
			"discard": func(t *rapid.T) {
				m := rapid.IntRange(1, 4).Draw(t, "m")
				drop := func(e int) bool { return e%m == 0 }
				c.Discard(drop)
				model = slices.DeleteFunc(slices.Clone(model), drop)
			},
			"close": func(t *rapid.T) {
				if rapid.IntRange(0, 30).Draw(t, "close") > 0 {
					t.Skip()
				}
				c.Close()
				closed, model, registered = true, nil, 0
			},
			"": func(t *rapid.T) {
				if c.Len() != len(model) || c.Cap() != capacity {
					t.Fatalf("length %d, capacity %d; want %d, %d", c.Len(), c.Cap(), len(model), capacity)
				}
				if !slices.Equal(served, expected) {
					t.Fatalf("registrations got %v, want %v", served, expected)
				}
			},
		})
	})
}

func TestCompletionsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := NewCompletions[int](4)
		type result struct {
			waiter, e int
			err       error
		}
		results := make(chan result, 10)
		sleep := func(waiter int, ctx context.Context) {
			go func() {
				e, err := c.Wait(ctx, nil)
				results <- result{waiter, e, err}
			}()
			synctest.Wait()
		}
		expect := func(want ...result) {
			t.Helper()
			synctest.Wait()
			for _, w := range want {
				select {
				case r := <-results:
					if r != w {
						t.Errorf("%+v, want %+v", r, w)
					}
				default:
					t.Errorf("no Wait returned, want %+v", w)
				}
			}
			if len(results) > 0 {
				t.Errorf("another Wait returned: %+v", <-results)
			}
		}
		bg := context.Background()
		sleep(1, bg)
		sleep(2, bg)
		c.Push(10) // the only entry goes to the first waiter
		expect(result{1, 10, nil})
		c.Push(20)
		expect(result{2, 20, nil})

		// A cancelled waiter does not delay the next waiter.
		ctx, cancel := context.WithCancel(bg)
		sleep(3, ctx)
		sleep(4, bg)
		cancel()
		expect(result{3, 0, context.Canceled})
		c.Push(30)
		expect(result{4, 30, nil})

		// A registration comes before waiters.
		sleep(5, bg)
		var notified int
		c.Notify(func(e int) { notified = e })
		c.Push(40)
		expect()
		if notified != 40 {
			t.Errorf("notified of %d", notified)
		}
		c.PushAll([]int{50, 60})
		expect(result{5, 50, nil})
		sleep(6, bg)
		expect(result{6, 60, nil})

		sleep(10, bg)
		sleep(11, bg)
		c.PushAll([]int{61, 62})
		synctest.Wait()
		if len(results) != 2 {
			t.Errorf("%d waiters of 2 were woken for 2 entries", len(results))
		}
		for range len(results) {
			<-results
		}

		dl, stop := context.WithTimeout(bg, time.Second)
		defer stop()
		sleep(7, dl)
		time.Sleep(time.Second)
		expect(result{7, 0, context.DeadlineExceeded})

		sleep(8, bg)
		sleep(9, bg)
		c.Notify(func(int) { t.Error("notified by a close") })
		c.Close()
		synctest.Wait()
		for range 2 {
			if r := <-results; r.err != ErrClosed {
				t.Errorf("%+v", r)
			}
		}
		c.Push(70)
		c.Close()
		if _, err := c.Wait(bg, nil); err != ErrClosed || c.Len() != 0 {
			t.Errorf("wait on a closed queue: %v", err)
		}
	})
}

// TestCompletionsConcurrently pushes from four goroutines and takes entries in every way. Every
// entry must go to exactly one consumer, and the entries of each producer must arrive in order.
func TestCompletionsConcurrently(t *testing.T) {
	const producers, each = 4, 3000
	c := NewCompletions[[2]int](1)
	var got atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	count := func(n int) {
		if got.Add(int64(n)) == producers*each {
			cancel()
		}
	}
	var seen [producers][each]atomic.Int32
	take := func(e [2]int) {
		seen[e[0]][e[1]].Add(1)
		count(1)
	}
	for k := range 3 {
		wg.Go(func() {
			var last [producers]int
			for ctx.Err() == nil {
				var e [2]int
				var err error
				if k == 0 {
					var ok bool
					if e, ok = c.Poll(); !ok {
						time.Sleep(10 * time.Microsecond)
						continue
					}
				} else if e, err = c.Wait(ctx, nil); err != nil {
					continue
				}
				if e[1] < last[e[0]] {
					t.Errorf("entry %d of producer %d after %d", e[1], e[0], last[e[0]])
				}
				last[e[0]] = e[1]
				take(e)
			}
		})
	}
	wg.Go(func() {
		for ctx.Err() == nil {
			c.Notify(take)
			time.Sleep(50 * time.Microsecond)
		}
	})
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			c.Resize(i % 50)
			c.Discard(func([2]int) bool { return false })
			time.Sleep(50 * time.Microsecond)
		}
	})
	for p := range producers {
		wg.Go(func() {
			for i := 0; i < each; i++ {
				if i%7 == 0 && i+1 < each {
					c.PushAll([][2]int{{p, i}, {p, i + 1}})
					i++
					continue
				}
				c.Push([2]int{p, i})
			}
		})
	}
	select {
	case <-ctx.Done():
	case <-time.After(testkit.Patience):
		t.Errorf("%d entries of %d", got.Load(), producers*each)
		cancel()
	}
	wg.Wait()
	for p := range seen {
		for i := range seen[p] {
			if n := seen[p][i].Load(); n != 1 {
				t.Fatalf("entry %d of producer %d was seen %d times", i, p, n)
			}
		}
	}
}

func TestCompletionsDoNotAllocate(t *testing.T) {
	c := NewCompletions[*int](8)
	x := new(int)
	buf := make([]*int, 4)
	ctx := t.Context()
	if n := testing.AllocsPerRun(1000, func() {
		c.Push(x)
		c.PushN(x, 5)
		c.PollN(buf)
		c.Poll()
		c.Wait(ctx, nil)
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
}

func BenchmarkCompletions(b *testing.B) {
	c := NewCompletions[*int](64)
	x := new(int)
	b.Run("push poll", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Push(x)
			c.Poll()
		}
	})
	b.Run("push 64, poll 64", func(b *testing.B) {
		buf := make([]*int, 64)
		b.ReportAllocs()
		for b.Loop() {
			c.PushN(x, 64)
			c.PollN(buf)
		}
	})
}

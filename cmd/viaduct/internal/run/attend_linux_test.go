//go:build linux && (amd64 || arm64)

package run

import (
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"viaduct/internal/notify"
)

// Slow calls do not delay others. A relieved attendant receives no more calls, so that at most a
// single attendant receives at a time.
func TestAttend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := make(chan *notify.Call)
		var mu sync.Mutex
		receiving, served := 0, map[int]bool{}
		receive := func() (*notify.Call, error) {
			mu.Lock()
			receiving++
			if receiving != 1 {
				t.Errorf("%d attendants receive", receiving)
			}
			mu.Unlock()
			c, ok := <-calls
			mu.Lock()
			receiving--
			mu.Unlock()
			if !ok {
				return nil, io.EOF
			}
			return c, nil
		}
		const slow = 100 // calls with numbers from here on block
		held := make(chan struct{})
		serve := func(c *notify.Call) {
			if c.Nr >= slow {
				<-held
			}
			mu.Lock()
			served[c.Nr] = true
			mu.Unlock()
		}
		over := make(chan error, 1)
		go func() { over <- attend(receive, serve) }()
		for i := range 5 {
			time.Sleep(time.Duration(i) * attendFor) // attend rests after a while without calls
			calls <- &notify.Call{Nr: slow + i}
			calls <- &notify.Call{Nr: i} // another attendant receives it although the first one is still blocked
			synctest.Wait()
			mu.Lock()
			if !served[i] || served[slow+i] {
				t.Errorf("served %v", served)
			}
			mu.Unlock()
		}
		close(held)
		for i := range 20 {
			calls <- &notify.Call{Nr: 10 + i}
		}
		time.Sleep(10 * attendFor)
		close(calls)
		if err := <-over; err != io.EOF {
			t.Errorf("attend: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		if len(served) != 30 {
			t.Errorf("%d calls were served, want 30", len(served))
		}
	})
}

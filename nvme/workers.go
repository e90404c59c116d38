package nvme

import (
	"sync"
	"time"
)

// maxWorkers limits the commands of all queues that wait for backends at the same time. When all
// workers are busy, the goroutine of the queue executes the command itself.
const maxWorkers = 64

// workers executes commands whose backend may wait for a device.
type workers struct {
	once   sync.Once
	jobs   chan *command
	mu     sync.Mutex
	n      int // guarded by mu
	closed bool
	wg     sync.WaitGroup
}

// idleWorker is how long an idle worker waits for work before ending.
const idleWorker = 5 * time.Second

// do executes the command in a worker, or in the caller if all workers are busy.
func (w *workers) do(c *command) {
	w.once.Do(func() { w.jobs = make(chan *command) })
	select {
	case w.jobs <- c:
		return
	default:
	}
	w.mu.Lock()
	more := w.n < maxWorkers && !w.closed
	if more {
		w.n++
		w.wg.Add(1)
	}
	w.mu.Unlock()
	if !more {
		c.execute()
		return
	}
	go w.work(c)
}

func (w *workers) work(c *command) {
	defer w.wg.Done()
	idle := time.NewTimer(idleWorker)
	defer idle.Stop()
	for {
		c.execute()
		idle.Reset(idleWorker)
		select {
		case c = <-w.jobs:
			if c == nil {
				return
			}
		case <-idle.C:
			w.mu.Lock()
			w.n--
			w.mu.Unlock()
			return
		}
	}
}

// close ends the workers. No commands may be in progress. A second call has no effect.
func (w *workers) close() {
	w.once.Do(func() { w.jobs = make(chan *command) })
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.jobs)
	}
	w.mu.Unlock()
	w.wg.Wait()
}

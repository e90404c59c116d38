package nvme

import (
	"sync"
	"time"
)

// maxWorkers bounds the commands that wait for backends at a time, of all queues. Beyond it
// a queue waits itself.
const maxWorkers = 64

// workers run commands whose backend may wait for a device.
type workers struct {
	once   sync.Once
	jobs   chan *command
	mu     sync.Mutex
	n      int // guarded by mu
	closed bool
	wg     sync.WaitGroup
}

// idleWorker is how long a worker waits for work before it ends.
const idleWorker = 5 * time.Second

// do runs the command in a worker, or here if there are enough of them.
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

// close ends the workers, which have no commands left. It may be called twice.
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

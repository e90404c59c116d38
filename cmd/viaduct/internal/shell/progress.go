package shell

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// A Bar shows the progress of work: bytes, rate, time left. It shows nothing if stderr is no
// terminal. A nil Bar can be used and shows nothing.
type Bar struct {
	p    *mpb.Progress
	b    *mpb.Bar
	note atomic.Pointer[string]
}

// Progress starts a bar for total bytes, of which done are complete. If total is negative
// (unknown), the bar shows the bytes and the rate. If total is 0, the bar is nil.
func (e *Env) Progress(name string, total, done int64) *Bar {
	if !e.IsTerminal() || total == 0 {
		return nil
	}
	if total < 0 {
		r := &Bar{p: mpb.New(mpb.WithOutput(e.Stderr), mpb.WithRefreshRate(100*time.Millisecond))}
		r.b = r.p.New(0, mpb.NopStyle(), mpb.PrependDecorators(decor.Name(name+" "), decor.CurrentKibiByte("% .1f")),
			mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f "), decor.Any(r.state)))
		return r
	}
	r := e.bar(decor.Name(name + " "))
	r.b.SetTotal(total, false)
	if done > 0 {
		r.b.SetRefill(done)
		r.b.SetCurrent(done)
		r.b.DecoratorAverageAdjust(time.Now())
	}
	return r
}

// bar returns a bar whose total is set later. A bar created with a total ends at the last byte, and
// could not show later steps.
func (e *Env) bar(name decor.Decorator) *Bar {
	r := &Bar{p: mpb.New(mpb.WithOutput(e.Stderr), mpb.WithWidth(40), mpb.WithRefreshRate(100*time.Millisecond))}
	r.b = r.p.AddBar(0, mpb.PrependDecorators(name, decor.CountersKibiByte("% .1f / % .1f")),
		mpb.AppendDecorators(decor.AverageSpeed(decor.SizeB1024(0), "% .1f "),
			decor.AverageETA(decor.ET_STYLE_GO), decor.Any(r.state)))
	return r
}

// A Total is one bar for many files. More files are found while the first files are copied. Methods
// are safe for concurrent use, and do nothing without a bar.
//
// The bar's goroutine reads found and moved while drawing. Found holds mu while waiting for the
// goroutine, so drawing must not lock mu.
type Total struct {
	*Bar
	found, moved atomic.Int64
	mu           sync.Mutex
	bytes        int64 // guarded by mu: total of the found files
}

// Total starts a bar for the files counted by Found.
func (e *Env) Total(verb string) *Total {
	t := &Total{}
	if e.IsTerminal() {
		t.Bar = e.bar(decor.Any(func(decor.Statistics) string {
			return fmt.Sprintf("%s %d of %d files ", verb, t.moved.Load(), t.found.Load())
		}))
	}
	return t
}

// Found adds a file to be moved.
func (t *Total) Found(bytes int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.found.Add(1)
	t.bytes += bytes
	if t.Bar != nil {
		t.b.SetTotal(t.bytes, false)
	}
}

// Moved counts a complete file. Add was already called for the first added bytes of the file.
func (t *Total) Moved(bytes, added int64) {
	t.moved.Add(1)
	if t.Bar != nil {
		t.b.IncrInt64(max(0, bytes-added))
	}
}

// Note shows text next to the bar, for work other than moving bytes. "" removes the note.
func (b *Bar) Note(text string) {
	if b != nil {
		b.note.Store(&text)
	}
}

func (b *Bar) state(decor.Statistics) string {
	if t := b.note.Load(); t != nil && *t != "" {
		return " " + *t
	}
	return ""
}

// Add moves the bar by n bytes.
func (b *Bar) Add(n int) {
	if b != nil {
		b.b.IncrBy(n)
	}
}

// Done ends the bar, finished or not, and leaves the bar on the screen.
func (b *Bar) Done() { b.end(false) }

// Drop ends the bar and removes the bar from the screen.
func (b *Bar) Drop() { b.end(true) }

func (b *Bar) end(drop bool) {
	if b == nil {
		return
	}
	b.Note("")
	b.b.Abort(drop)
	b.p.Wait()
}

// Size prints a count of bytes for people.
func Size(n float64) string {
	for _, u := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1000 {
			if u == "B" || n >= 100 {
				return fmt.Sprintf("%.0f %s", n, u)
			}
			return fmt.Sprintf("%.1f %s", n, u)
		}
		n /= 1024
	}
	return fmt.Sprintf("%.1f TiB", n)
}

// Rate prints bytes per second for people.
func Rate(n float64) string { return Size(n) + "/s" }

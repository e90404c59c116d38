// Package pcapng writes the data a process sends and receives on its connections to a capture file,
// without privileges. The data is recorded between the process and its sockets. The package makes
// up frames for the recorded bytes, with the real addresses and ports and correct sequence numbers.
// Therefore any analyser, such as Wireshark, can follow the streams. The capture does not show the
// real TCP segments, nor their retransmissions.
package pcapng

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// A Capture is an open capture file. Its methods are safe for concurrent use.
type Capture struct {
	// Clock returns the times of packets; nil means time.Now. Set it before the first packet.
	Clock func() time.Time

	mu     sync.Mutex
	f      io.WriteCloser
	w      *pcapgo.NgWriter
	frame  []byte
	frames int   // number of frames so far
	err    error // the first write error, after which frames are discarded
	stop   chan struct{}
	done   sync.WaitGroup
}

// flushEvery is how often frames are written to the file. A killed process loses the frames since.
const flushEvery = 100 * time.Millisecond

// Create creates or truncates the file at path.
func Create(path, application string) (*Capture, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	return New(f, application)
}

// New begins a capture in f. Close closes f, and so does a failed New.
func New(f io.WriteCloser, application string) (*Capture, error) {
	w, err := pcapgo.NewNgWriterInterface(f, pcapgo.NgInterface{
		Name:                "viaduct",
		Comment:             "frames made from what the process read and wrote; segmentation is not that of the network",
		LinkType:            layers.LinkTypeEthernet,
		SnapLength:          0,
		TimestampResolution: 9,
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: application}})
	if err == nil {
		err = w.Flush()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("capture: %w", err)
	}
	c := &Capture{f: f, w: w, stop: make(chan struct{})}
	c.done.Go(c.flusher)
	return c, nil
}

func (c *Capture) flusher() {
	t := time.NewTicker(flushEvery)
	defer t.Stop()
	for {
		select {
		case <-c.stop:
			return
		case <-t.C:
			c.mu.Lock()
			c.flushLocked()
			c.mu.Unlock()
		}
	}
}

func (c *Capture) flushLocked() {
	if err := c.w.Flush(); err != nil && c.err == nil {
		c.err = err
	}
}

// Close writes the buffered frames, closes the file and returns the first error of the capture.
func (c *Capture) Close() error {
	close(c.stop)
	c.done.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
	if err := c.f.Close(); c.err == nil {
		c.err = err
	}
	if c.err != nil {
		return fmt.Errorf("capture: %w", c.err)
	}
	return nil
}

// writeLocked writes the frame in c.frame.
func (c *Capture) writeLocked() {
	if c.err != nil {
		return
	}
	now := time.Now
	if c.Clock != nil {
		now = c.Clock
	}
	c.frames++
	c.err = c.w.WritePacket(gopacket.CaptureInfo{
		Timestamp: now(), CaptureLength: len(c.frame), Length: len(c.frame), InterfaceIndex: 0,
	}, c.frame)
}

// segment writes a frame and returns the number of the packet.
func (c *Capture) segment(s segment) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frame = appendTCP(c.frame[:0], s)
	c.writeLocked()
	return c.frames
}

// Datagram records a UDP datagram. out is true for a datagram sent by this process.
func (c *Capture) Datagram(out bool, src, dst netip.AddrPort, payload []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.frame = appendUDP(c.frame[:0], src, dst, out, payload[:min(len(payload), maxSegment)])
	c.writeLocked()
}

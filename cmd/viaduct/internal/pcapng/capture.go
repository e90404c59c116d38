// Package pcapng writes the data a process sends and receives on its connections to a capture file,
// without privileges. The data is recorded between the process and its sockets. The package makes
// up frames for the recorded bytes, with the real addresses and ports and correct sequence numbers.
// Therefore any analyser, such as Wireshark, can follow the streams. The capture does not show the
// real TCP segments, nor their retransmissions.
package pcapng

import (
	"bytes"
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
	blocks bytes.Buffer // blocks on their way to f
	w      *pcapgo.NgWriter
	frame  []byte
	frames int   // number of frames so far
	err    error // the first write error, after which frames are discarded
	stop   chan struct{}
	done   sync.WaitGroup
}

// Frames are written to the file every flushEvery, and when there are flushBytes of them. A killed
// process loses the frames since. Only whole blocks are written, so that a program that reads the
// file meanwhile finds no broken one at its end.
const (
	flushEvery = 100 * time.Millisecond
	flushBytes = 64 << 10
)

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
	c := &Capture{f: f, stop: make(chan struct{})}
	w, err := pcapgo.NewNgWriterInterface(&c.blocks, pcapgo.NgInterface{
		Name:                "viaduct",
		Comment:             "frames made from what the process read and wrote; segmentation is not that of the network",
		LinkType:            layers.LinkTypeEthernet,
		SnapLength:          0,
		TimestampResolution: 9,
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: application}})
	if err == nil {
		c.w = w
		err = c.Flush()
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("capture: %w", err)
	}
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
			c.Flush()
		}
	}
}

// Flush writes all frames to the file, and returns the first error of the capture.
func (c *Capture) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flushLocked()
	return c.err
}

func (c *Capture) flushLocked() {
	c.w.Flush() // into a Buffer, which takes everything
	if c.blocks.Len() == 0 {
		return
	}
	_, err := c.f.Write(c.blocks.Bytes())
	c.blocks.Reset()
	if c.err == nil {
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
	if c.blocks.Len() >= flushBytes {
		c.flushLocked()
	}
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

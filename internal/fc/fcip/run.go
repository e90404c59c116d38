package fcip

import (
	"encoding/binary"

	"viaduct/internal/fc"
)

// These are offsets in an encapsulated frame.
const (
	offSOF    = HeaderLen
	offFrame  = HeaderLen + delimLen
	offSeqCnt = offFrame + 14
	offParam  = offFrame + 20
	offOpt    = offFrame + fc.HeaderLen
)

// A header holds all bytes before the payload of an encapsulated frame, with room for the longest
// optional headers.
type header [offOpt + 128]byte

// place writes the fields of f that differ from earlier frames of the run to h, the front of an
// encapsulated frame.
func place(h []byte, f *fc.Frame) {
	binary.BigEndian.PutUint32(h[offSOF:], delim(byte(f.SOF)))
	binary.BigEndian.PutUint16(h[offSeqCnt:], f.SeqCnt)
	binary.BigEndian.PutUint32(h[offParam:], f.Param)
}

// runLock is the number of frames of a run built before the lock is released for the writer.
const runLock = 8

// SendRun implements fc.RunSender.
func (l *Link) SendRun(f *fc.Frame, size int, data []byte) {
	for len(data) > 0 {
		n := min(len(data), runLock*size)
		l.sendRun(f, size, data[:n])
		data = data[n:]
	}
}

func (l *Link) sendRun(f *fc.Frame, size int, data []byte) {
	frames := uint64(len(data) / size)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pend)+int(frames)*MaxLen > cap(l.pend) {
		l.stats.over.Add(frames)
		return
	}
	l.stats.sentF.Add(frames)
	at := len(l.pend)
	f.Payload = data[:size]
	l.pend = Append(l.pend, f)
	before, last := l.pend[at:], []byte(nil)
	n, from := len(before), offOpt+len(f.Opt)
	for data = data[size:]; len(data) > 0; data = data[size:] {
		f.Next(size)
		at += n
		l.pend = l.pend[:at+n]
		b := l.pend[at:]
		copy(b[:from], before)
		place(b, f)
		copy(b[from:], data[:size])
		copy(b[from+size:], before[from+size:]) // the fill bytes, the CRC and the EOF
		// The CRC of the previous frame is computed only now, because the processor would have to
		// wait for the bytes of a frame copied just before.
		if last != nil {
			fc.Seal(last[offFrame : n-delimLen])
		}
		last = b
	}
	if last != nil {
		fc.Seal(last[offFrame : n-delimLen])
	}
	f.Next(size)
}

// follow passes the frames after the current frame, whose bytes are wire, to the frame's Taker.
// follow stops at the first frame that is incomplete, differs from the expected header, or has a
// wrong CRC. The method each handles such a frame.
func (l *Link) follow(wire []byte) (frames uint64) {
	f := &l.frame
	n, size, from := len(wire), len(f.Payload), offOpt+len(f.Opt)
	if from > len(l.head) || f.Last() {
		return 0
	}
	h := l.head[:copy(l.head[:from], wire)]
	f.Next(size)
	place(h, f)
	eof := binary.BigEndian.Uint32(wire[n-delimLen:])
	for ; len(l.batch)-l.used >= n; f.Next(size) {
		// The fields are compared in pieces, without writing the expected values to h. Otherwise
		// the processor would have to wait for these bytes.
		b := l.batch[l.used : l.used+n]
		if string(b[:offSeqCnt]) != string(h[:offSeqCnt]) || binary.BigEndian.Uint16(b[offSeqCnt:]) != f.SeqCnt ||
			string(b[offSeqCnt+2:offParam]) != string(h[offSeqCnt+2:offParam]) ||
			binary.BigEndian.Uint32(b[offParam:]) != f.Param ||
			string(b[offOpt:from]) != string(h[offOpt:]) || binary.BigEndian.Uint32(b[n-delimLen:]) != eof ||
			!fc.Sound(b[offFrame:n-delimLen]) || // [FCVI-3-1]
			!f.Taker.Take(b[from:from+size]) {
			break
		}
		l.used += n
		frames++
	}
	return frames
}

package fc

// The frames of a long sequence differ only in SEQ_CNT and relative offset, so the lookups and
// checks for one frame hold for the next. Therefore a run of such frames may be passed on at once:
// outgoing by a [RunSender], incoming to a [Taker].

// A RunSender is a Sender able to send a run of frames at less cost than single frames.
type RunSender interface {
	Sender
	// SendRun sends data in frames of size bytes each: f with the first bytes, then its successors
	// ([Frame.Next]). The length of data is a multiple of size. SendRun ignores f.Payload and
	// changes f.
	SendRun(f *Frame, size int, data []byte)
}

// SendRun sends a run of class 3 frames through out, frame by frame if out is no [RunSender]. The
// parameters are those of RunSender.SendRun.
func SendRun(out Sender, f *Frame, size int, data []byte) {
	if r, ok := out.(RunSender); ok {
		r.SendRun(f, size, data)
		return
	}
	for ; len(data) > 0; data = data[size:] {
		f.Payload = data[:size]
		out.Send(f)
		f.Next(size)
	}
}

// A Taker handles the frames that continue a given frame, in the same sequence. The headers are
// equal except for SEQ_CNT (rises by 1) and the relative offset in Parameter (rises by the previous
// length). None is the first or the last frame of the sequence.
type Taker interface {
	// Take handles the payload of the next frame. The payload is valid during the call, with a
	// right CRC. If Take returns false, that frame and all later frames are delivered in the usual
	// way.
	Take(payload []byte) bool
}

// Next turns the header of f, a frame of class 3, into the header of the next frame in the
// sequence. n is the length of f's payload.
func (f *Frame) Next(n int) {
	f.SOF, f.EOF = Class3.Delimiters(false, f.Last())
	f.SeqCnt++
	f.Param += uint32(n)
}

// SendRun is Send for a run of frames to r with size bytes of data each. None of the frames ends
// its sequence. first means that the run begins the sequence. In class 2 a part of the run may have
// been sent when SendRun returns false. [FCVI-5.8-5] [FCVI-5.8-6]
func (p *NPort) SendRun(now Time, r *Remote, class Class, first bool, f *Frame, size int, data []byte) bool {
	if class == Class2 {
		for ; len(data) > 0; data = data[size:] {
			f.Payload = data[:size]
			if !p.Send(now, r, class, first, f) {
				return false
			}
			f.SeqCnt++
			f.Param += uint32(size)
			first = false
		}
		return true
	}
	if !r.Ready() {
		return false
	}
	f.SID, f.DID = p.id, r.Addr
	f.SOF, f.EOF = class.Delimiters(first, false)
	p.stats.SentFrames += uint64(len(data) / size)
	SendRun(p.out, f, size, data)
	return true
}

// Taken counts a frame a [Taker] has handled.
func (p *NPort) Taken() { p.stats.RecvFrames++ }

package fc

// The frames of a long sequence differ in nothing but their place in it, and
// what is looked up and checked for one of them holds for the next. So a run of
// them may be handed over at once, on the way out by a [RunSender] and on the
// way in to a [Taker].

// A RunSender is a Sender that makes a run of frames cheaper than each of them.
type RunSender interface {
	Sender
	// SendRun is Send for each size bytes of data, of which there is a whole
	// number: f with the first of them, and its successors ([Frame.Next]).
	// f.Payload does not matter, and f is changed.
	SendRun(f *Frame, size int, data []byte)
}

// SendRun sends a run of frames of class 3 through out. See [RunSender].
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

// A Taker takes the frames that continue one it was given: of the same sequence
// and with the same header, but for SEQ_CNT, one higher each time, and the
// relative offset in Parameter, which follows from the length before. Neither is
// the first or the last of the sequence.
type Taker interface {
	// Take takes the payload of the next frame, which is valid during the call
	// and whose CRC is right. It reports false if it has not: that frame, and
	// those behind it, come as others do.
	Take(payload []byte) bool
}

// Next makes f the header of the frame behind it in its sequence, of class 3;
// n is the length of f's payload.
func (f *Frame) Next(n int) {
	f.SOF, f.EOF = Class3.Delimiters(false, f.Last())
	f.SeqCnt++
	f.Param += uint32(n)
}

// SendRun is Send for a run of frames to r, none of which ends its sequence, with
// size bytes of data each; first tells that the first begins it. [FCVI-5.8-5]
// [FCVI-5.8-6]
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

// Taken counts a frame that an FC-4 took as a [Taker].
func (p *NPort) Taken() { p.stats.RecvFrames++ }

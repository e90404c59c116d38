package nvmecore

import (
	"time"

	"viaduct/internal/wire/nvmewire"
)

// A Queue is a submission queue with its completion queue, on a single stream.
type Queue struct {
	ID    uint16
	Depth int // greatest number of commands at a time

	t       *Target
	from    Address
	opened  time.Time
	ctrl    *controller // nil before Connect
	pending int         // unanswered commands, except event requests
	head    uint16
	active  bool // something arrived since the last Tick
	ending  bool
}

// An Address is the target's address as dialled by the host.
type Address struct {
	IPv6          bool
	Host, Service string
}

// Open returns a queue for a connection Request with the given private data, or nil and the reason
// of the rejection.
func (t *Target) Open(now time.Time, private []byte, at Address) (*Queue, nvmewire.RejectReason) {
	r, err := nvmewire.ParseRequest(private)
	depth := int(r.HSQSize) + 1
	if r.QID == 0 {
		depth = AdminDepth
	}
	switch {
	case err != nil:
		return nil, nvmewire.RejectLength
	case r.RecFmt != 0:
		return nil, nvmewire.RejectRecFmt
	case int(r.QID) > t.cfg.MaxQueues:
		return nil, nvmewire.RejectQID
	case depth < 2 || depth > MaxDepth:
		return nil, nvmewire.RejectHSQSize
	case r.HRQSize == 0:
		return nil, nvmewire.RejectHRQSize
	}
	q := &Queue{ID: r.QID, Depth: depth, t: t, from: at, opened: now}
	t.queues[q] = true
	return q, 0
}

// CapsuleLen returns the greatest length of a command capsule in bytes.
func (q *Queue) CapsuleLen() int {
	if q.ID == 0 {
		return nvmewire.SQELen
	}
	return nvmewire.SQELen + InCapsule
}

// Describe returns the controller's number and the NQN of the host; 0 and "" before Connect.
func (q *Queue) Describe() (controller uint16, host string) {
	if q.ctrl == nil {
		return 0, ""
	}
	return q.ctrl.id, q.ctrl.hostNQN
}

// A Kind is the kind of work a command needs.
type Kind uint8

// The kinds.
const (
	Answer  Kind = iota // write Data to the host, then respond
	Connect             // get the data of Connect from the host, then call ConnectData
	Flush               // flush one namespace, or all if NSID is 0
	Read
	Write
	Compare
	Zero
	Discard // get ranges from the host, then call DiscardRange for each
	Hold    // do nothing now: an Output will answer
	End     // abort the stream of the queue
)

// A Step is the work for a command. After the work, Respond makes the response.
type Step struct {
	Kind   Kind
	Status nvmewire.Status // for Answer
	Result uint64          // for Answer
	Data   []byte          // data for the host, sent before the response

	NSID    uint32
	Offset  int64 // in bytes
	Length  int64 // bytes; fetched from the host for Connect, Write, Compare and Discard
	Durable bool  // for Write and Zero: flush afterwards
}

func answer(s nvmewire.Status) Step { return Step{Status: s} }

// Command returns the work for a command with n bytes of data in the capsule. [NVME-SQE-4]
func (q *Queue) Command(s *nvmewire.SQE, n int) Step {
	if q.ending {
		return Step{Kind: End}
	}
	q.active = true
	q.head = (q.head + 1) % uint16(q.Depth)
	if q.pending++; q.pending > q.Depth { // [NVME-SQE-3]
		return Step{Kind: End}
	}
	switch {
	case !s.UsesSGL(): // [NVME-SQE-2]
		return answer(nvmewire.InvalidField)
	case !s.SGL.Valid(): // [NVME-SGL-1]
		return answer(nvmewire.SGLTypeInvalid)
	case s.Opcode == nvmewire.OpFabrics:
		return q.fabrics(s, n)
	case q.ctrl == nil: // [NVME-FAB-2]
		return answer(nvmewire.SequenceError)
	case q.ID == 0:
		return q.ctrl.admin(q, s)
	}
	return q.io(s, n)
}

// Respond returns the response to a command, and no longer counts the command as pending.
func (q *Queue) Respond(s *nvmewire.SQE, result uint64, st nvmewire.Status) nvmewire.CQE {
	q.pending--
	return nvmewire.CQE{Result: result, SQHead: q.head, CID: s.CID, Status: st}
}

// fromHost checks that the descriptor of data from the host has exactly length bytes, or at least
// length bytes if atLeast is set.
func (q *Queue) fromHost(s *nvmewire.SQE, inCapsule int, length int64, atLeast bool) nvmewire.Status {
	g := s.SGL
	if g.Type == nvmewire.SGLOffset { // [NVME-SGL-3]
		if q.ID == 0 || g.Addr > uint64(inCapsule) || uint64(g.Length) > uint64(inCapsule)-g.Addr {
			return nvmewire.SGLOffsetInvalid
		}
	}
	if int64(g.Length) < length || int64(g.Length) > length && !atLeast { // [NVME-SGL-4]
		return nvmewire.SGLLengthInvalid
	}
	return nvmewire.OK
}

func (q *Queue) io(s *nvmewire.SQE, inCapsule int) Step {
	t := q.t
	if s.Opcode == nvmewire.OpFlush {
		switch {
		case s.NSID == 0xffffffff:
			return Step{Kind: Flush}
		case t.spaces[s.NSID] == nil:
			return answer(nvmewire.InvalidNamespace)
		}
		return Step{Kind: Flush, NSID: s.NSID}
	}
	n := t.spaces[s.NSID]
	if n == nil {
		return answer(nvmewire.InvalidNamespace)
	}
	if s.Opcode == nvmewire.OpDSM {
		count := int64(s.CDW[0]&0xff) + 1
		if st := q.fromHost(s, inCapsule, count*nvmewire.DSMRangeLen, true); st != nvmewire.OK {
			return answer(st)
		}
		if n.ReadOnly {
			return answer(nvmewire.NamespaceReadOnly)
		}
		return Step{Kind: Discard, NSID: s.NSID, Length: count * nvmewire.DSMRangeLen}
	}
	first, blocks := s.Range()
	step := Step{NSID: s.NSID, Durable: s.CDW[2]>>30&1 != 0}
	writes := false
	switch s.Opcode {
	case nvmewire.OpRead:
		step.Kind = Read
	case nvmewire.OpWrite:
		step.Kind, writes = Write, true
	case nvmewire.OpCompare:
		step.Kind = Compare
	case nvmewire.OpWriteZeroes:
		step.Kind, writes = Zero, true
	default:
		return answer(nvmewire.InvalidOpcode)
	}
	if first > n.Blocks || uint64(blocks) > n.Blocks-first { // [NVME-IO-1]
		return answer(nvmewire.LBAOutOfRange)
	}
	step.Offset, step.Length = int64(first)<<n.Shift, int64(blocks)<<n.Shift
	switch {
	case writes && n.ReadOnly: // [NVME-IO-6]
		return answer(nvmewire.NamespaceReadOnly)
	case s.CDW[2]>>26&15 != 0 || step.Kind != Zero && step.Length > maxTransfer:
		return answer(nvmewire.InvalidField) // protection information is not supported
	case step.Kind == Read && (s.SGL.Type == nvmewire.SGLOffset || int64(s.SGL.Length) != step.Length):
		return answer(nvmewire.SGLLengthInvalid) // [NVME-SGL-4]
	case step.Kind == Write || step.Kind == Compare:
		if st := q.fromHost(s, inCapsule, step.Length, false); st != nvmewire.OK {
			return answer(st)
		}
	}
	return step
}

// DiscardRange converts a range of Dataset Management to bytes. The status is not OK if the range
// exceeds the namespace, or if there is no such namespace.
func (t *Target) DiscardRange(id uint32, r nvmewire.DSMRange) (off, length int64, st nvmewire.Status) {
	n := t.spaces[id]
	switch {
	case n == nil:
		return 0, 0, nvmewire.InvalidNamespace
	case r.First > n.Blocks || uint64(r.Blocks) > n.Blocks-r.First:
		return 0, 0, nvmewire.LBAOutOfRange
	}
	return int64(r.First) << n.Shift, int64(r.Blocks) << n.Shift, nvmewire.OK
}

package nvmecore

import (
	"time"

	"viaduct/internal/wire/nvmewire"
)

func (q *Queue) fabrics(s *nvmewire.SQE, inCapsule int) Step {
	switch s.FCType {
	case nvmewire.FCConnect:
		if st := q.fromHost(s, inCapsule, nvmewire.ConnectLen, false); st != nvmewire.OK {
			return answer(st)
		}
		return Step{Kind: Connect, Length: nvmewire.ConnectLen}
	case nvmewire.FCPropertyGet, nvmewire.FCPropertySet:
		switch {
		case q.ctrl == nil: // [NVME-FAB-2]
			return answer(nvmewire.SequenceError)
		case q.ID != 0:
			return answer(nvmewire.InvalidField)
		case s.FCType == nvmewire.FCPropertyGet:
			return q.ctrl.property(s.Property())
		}
		return q.ctrl.setProperty(s.Property())
	case nvmewire.FCDisconnect:
		switch {
		case q.ctrl == nil:
			return answer(nvmewire.SequenceError)
		case q.ID == 0:
			return answer(nvmewire.InvalidField)
		}
		return Step{} // the host then closes the stream
	}
	return answer(nvmewire.InvalidOpcode)
}

// wrong answers a Connect whose field at offset is wrong. [NVME-FAB-3]
func wrong(offset uint64) Step {
	return Step{Status: nvmewire.InvalidConnectParam, Result: offset}
}

// ConnectData returns the answer to the Connect s, whose data was received.
func (q *Queue) ConnectData(now time.Time, s *nvmewire.SQE, data []byte) Step {
	c := s.ConnectCommand()
	if err := c.ParseData(data); err != nil {
		return answer(nvmewire.SGLLengthInvalid)
	}
	t := q.t
	switch {
	case q.ctrl != nil: // [NVME-FAB-2]
		return answer(nvmewire.SequenceError)
	case c.RecFmt != 0:
		return answer(nvmewire.IncompatibleFormat)
	case c.QID != q.ID:
		return wrong(nvmewire.OffsetQID)
	case c.SQSize == 0 || int(c.SQSize)+1 > q.Depth:
		return wrong(nvmewire.OffsetSQSize)
	case c.HostNQN == "":
		return wrong(nvmewire.OffsetHostNQN)
	case c.SubNQN != t.cfg.NQN && (c.SubNQN != DiscoveryNQN || q.ID != 0):
		return wrong(nvmewire.OffsetSubNQN)
	case q.ID == 0:
		return q.newController(now, &c)
	}
	return q.join(&c)
}

// newController creates the controller for an admin queue. [NVME-FAB-4]
func (q *Queue) newController(now time.Time, c *nvmewire.Connect) Step {
	if c.CntlID != 0xffff {
		return wrong(nvmewire.OffsetCntlID)
	}
	t := q.t
	id, ok := t.freeController()
	if !ok {
		return answer(nvmewire.ControllerBusy)
	}
	q.ctrl = &controller{
		t: t, id: id, discovery: c.SubNQN == DiscoveryNQN, hostNQN: c.HostNQN, hostID: c.HostID, heard: now,
		keepAlive: time.Duration(c.KATO) * time.Millisecond, queues: map[uint16]*Queue{0: q}, granted: 1,
	}
	t.controllers[id] = q.ctrl
	return Step{Result: uint64(id)}
}

// freeController returns an unused controller number. It returns recently freed numbers last. ok is
// false if all numbers are in use.
func (t *Target) freeController() (uint16, bool) {
	for range 0xffef {
		if t.lastID++; t.lastID > 0xffef {
			t.lastID = 1
		}
		if t.controllers[t.lastID] == nil {
			return t.lastID, true
		}
	}
	return 0, false
}

// join adds the queue to an existing controller. [NVME-FAB-4]
func (q *Queue) join(c *nvmewire.Connect) Step {
	k := q.t.controllers[c.CntlID]
	switch {
	case k == nil || k.discovery || k.ended:
		return wrong(nvmewire.OffsetCntlID)
	case k.hostNQN != c.HostNQN || k.hostID != c.HostID:
		return wrong(nvmewire.OffsetHostNQN)
	case k.csts&statusReady == 0:
		return answer(nvmewire.SequenceError)
	case q.ID > k.granted || k.queues[q.ID] != nil:
		return wrong(nvmewire.OffsetQID)
	}
	k.queues[q.ID], q.ctrl = q, k
	return Step{Result: uint64(k.id)}
}

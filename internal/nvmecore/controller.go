package nvmecore

import (
	"slices"
	"time"

	"viaduct/internal/wire/nvmewire"
)

// Bits of CSTS and CC.
const (
	statusReady    = 1 << 0
	statusFatal    = 1 << 1
	statusShutdown = 2 << 2 // the shutdown is complete

	configEnable   = 1 << 0
	configShutdown = 3 << 14
	configEntries  = 4<<20 | 6<<16           // log2 of the bytes of CQE and SQE
	configFixed    = 0xff<<16 | 15<<7 | 7<<4 // sizes of entries and pages, command set
)

// A controller is the association of a host: an admin queue and I/O queues.
type controller struct {
	t         *Target
	id        uint16
	discovery bool
	hostNQN   string
	hostID    [16]byte
	keepAlive time.Duration // 0 for no limit
	heard     time.Time     // time of the Tick after the last arrival
	cc, csts  uint32
	granted   uint16 // number of I/O queues that the host may connect
	queues    map[uint16]*Queue
	ended     bool
	events
}

// end requests the end of all queues of the controller. No queue can connect afterwards.
func (c *controller) end() {
	c.ended = true
	for _, q := range c.queues {
		c.t.end(q)
	}
}

// property handles Property Get. [NVME-PROP-1]
func (c *controller) property(p nvmewire.Property) Step {
	switch {
	case p.Offset == nvmewire.PropCAP && p.Wide:
		// CAP: contiguous queues required, ready within 7.5 s, NVM command set.
		return Step{Result: MaxDepth - 1 | 1<<16 | 15<<24 | 1<<37}
	case p.Offset == nvmewire.PropVS && !p.Wide:
		return Step{Result: version}
	case p.Offset == nvmewire.PropCC && !p.Wide:
		return Step{Result: uint64(c.cc)}
	case p.Offset == nvmewire.PropCSTS && !p.Wide:
		return Step{Result: uint64(c.csts)}
	}
	return answer(nvmewire.InvalidField)
}

// setProperty handles Property Set. [NVME-PROP-1] [NVME-PROP-2]
func (c *controller) setProperty(p nvmewire.Property) Step {
	if p.Offset != nvmewire.PropCC || p.Wide {
		return answer(nvmewire.InvalidField)
	}
	old := c.cc
	c.cc = uint32(p.Value)
	if c.cc&configShutdown != 0 && old&configShutdown == 0 {
		c.csts |= statusShutdown
	}
	switch enabled := c.cc&configEnable != 0; {
	case enabled == (old&configEnable != 0):
	case enabled && c.cc&configFixed != configEntries:
		c.csts = statusFatal
	case enabled:
		c.csts = statusReady
	default:
		c.reset()
	}
	return Step{}
}

// reset ends the I/O queues and discards the settings of the host.
func (c *controller) reset() {
	c.csts = 0
	for id, q := range c.queues {
		if id != 0 {
			c.t.end(q)
			delete(c.queues, id)
		}
	}
	c.granted, c.events = 1, events{}
}

func (c *controller) admin(q *Queue, s *nvmewire.SQE) Step {
	switch s.Opcode {
	case nvmewire.OpAsyncEvent:
		return c.eventRequest(q, s)
	case nvmewire.OpKeepAlive:
		return Step{}
	case nvmewire.OpIdentify:
		return c.toHost(s, c.identify(uint8(s.CDW[0]), s.NSID, uint8(s.CDW[1]>>24)))
	case nvmewire.OpGetLogPage:
		return c.toHost(s, c.log(q, s.LogRequest()))
	case nvmewire.OpSetFeatures:
		return c.setFeature(uint8(s.CDW[0]), s.CDW[1])
	case nvmewire.OpGetFeatures:
		return c.toHost(s, c.feature(uint8(s.CDW[0])))
	case nvmewire.OpAbort:
		return Step{Result: 1} // not aborted; the target aborts no command
	}
	return answer(nvmewire.InvalidOpcode) // [NVME-ADM-2]
}

// toHost cuts the data of step to the length of the host's descriptor. [NVME-SGL-6]
func (c *controller) toHost(s *nvmewire.SQE, step Step) Step {
	switch {
	case step.Status != nvmewire.OK || len(step.Data) == 0:
	case s.SGL.Type == nvmewire.SGLOffset:
		return answer(nvmewire.SGLTypeInvalid)
	case len(step.Data) > int(s.SGL.Length):
		step.Data = step.Data[:s.SGL.Length]
	}
	return step
}

func (c *controller) setFeature(id uint8, v uint32) Step {
	switch {
	case id == nvmewire.FeatureQueues && !c.discovery: // [NVME-ADM-1]
		c.granted = uint16(min(v&0xffff+1, v>>16+1, uint32(c.t.cfg.MaxQueues)))
		return c.feature(id)
	case id == nvmewire.FeatureEvents:
		c.enabled = v
		c.deliver()
	case id == nvmewire.FeatureKeepAlive:
		c.keepAlive = time.Duration(v) * time.Millisecond
	case id == nvmewire.FeatureWriteCache && v&1 == 1:
	default:
		return answer(nvmewire.InvalidField)
	}
	return Step{}
}

func (c *controller) feature(id uint8) Step {
	switch {
	case id == nvmewire.FeatureQueues && !c.discovery:
		n := uint64(c.granted - 1)
		return Step{Result: n | n<<16}
	case id == nvmewire.FeatureEvents:
		return Step{Result: uint64(c.enabled)}
	case id == nvmewire.FeatureKeepAlive:
		return Step{Result: uint64(c.keepAlive / time.Millisecond)}
	case id == nvmewire.FeatureWriteCache:
		return Step{Result: 1}
	case id == nvmewire.FeatureHostID:
		return Step{Data: slices.Clone(c.hostID[:])}
	}
	return answer(nvmewire.InvalidField)
}

package nvmecore

import "viaduct/internal/wire/nvmewire"

func (c *controller) identify(cns uint8, id uint32, commandSet uint8) Step {
	if cns == nvmewire.CNSController {
		return c.identifyController()
	}
	t := c.t
	n := t.spaces[id]
	switch {
	case c.discovery:
		return answer(nvmewire.InvalidField)
	case cns == nvmewire.CNSNamespace: // [NVME-ID-4]
		switch {
		case id == 0xffffffff: // properties common to all namespaces: none
			return Step{Data: make([]byte, nvmewire.PageLen)}
		case id == 0 || id > MaxNamespaces:
			return answer(nvmewire.InvalidNamespace)
		case n == nil:
			return Step{Data: make([]byte, nvmewire.PageLen)}
		}
		i := nvmewire.IdentifyNamespace{
			Blocks: n.Blocks, BlockShift: n.Shift, ReadOnly: n.ReadOnly, ReadsZero: n.ReadsZero,
			Preferred: 4096 >> n.Shift, NGUID: n.UUID,
		}
		return Step{Data: i.Append(nil)}
	case cns == nvmewire.CNSActive && id < 0xfffffffe:
		return Step{Data: nvmewire.AppendList(nil, t.ids(id))}
	case cns == nvmewire.CNSDescriptors && n == nil:
		return answer(nvmewire.InvalidNamespace)
	case cns == nvmewire.CNSDescriptors: // [NVME-ID-5]
		return Step{Data: nvmewire.AppendDescriptors(nil, n.UUID)}
	case cns == nvmewire.CNSCommandSet && commandSet == 0:
		return Step{Data: make([]byte, nvmewire.PageLen)} // no limits beyond MDTS
	}
	return answer(nvmewire.InvalidField)
}

// identifyController returns the Identify data of the controller. [NVME-ID-1] [NVME-ID-2]
func (c *controller) identifyController() Step {
	cfg := &c.t.cfg
	i := nvmewire.IdentifyController{
		Serial: cfg.Serial, Model: cfg.Model, Firmware: firmware, MDTS: mdts, CntlID: c.id, Version: version,
		Type: nvmewire.IOController, OAES: nvmewire.EventNamespaces, AERL: MaxEvents - 1, KAS: 10, MaxCmd: MaxDepth,
		Namespaces: MaxNamespaces, ONCS: nvmewire.ONCSCompare | nvmewire.ONCSDSM | nvmewire.ONCSWriteZeroes,
		WriteCache: true, SubNQN: cfg.NQN, InCapsule: InCapsule,
	}
	if c.discovery {
		i.Type, i.SubNQN, i.OAES, i.InCapsule = nvmewire.DiscoveryController, DiscoveryNQN, 0, 0
	}
	return Step{Data: i.Append(nil)}
}

// log returns the requested part of a log page; bytes beyond the end of the page are zero.
// [NVME-ADM-3]
func (c *controller) log(q *Queue, r nvmewire.LogRequest) Step {
	var page []byte
	switch {
	case r.Page == nvmewire.LogErrors:
		page = make([]byte, 64)
	case r.Page == nvmewire.LogSMART:
		page = nvmewire.AppendHealth(nil)
	case r.Page == nvmewire.LogFirmware:
		page = nvmewire.AppendFirmware(nil, firmware)
	case r.Page == nvmewire.LogEffects:
		page = nvmewire.AppendEffects(nil, ioCommands)
	case r.Page == nvmewire.LogChanged && !c.discovery:
		page = c.changes(r.Retain)
	case r.Page == nvmewire.LogDiscovery && c.discovery: // [NVME-DISC-1] [NVME-DISC-3]
		page = nvmewire.AppendDiscovery(nil, 1, []nvmewire.DiscoveryEntry{
			{IPv6: q.from.IPv6, PortID: 1, Address: q.from.Host, Service: q.from.Service, SubNQN: c.t.cfg.NQN},
		})
	default:
		return answer(nvmewire.InvalidLogPage)
	}
	if r.Offset > uint64(len(page)) || r.Length > maxTransfer {
		return answer(nvmewire.InvalidField)
	}
	b := make([]byte, r.Length)
	copy(b, page[r.Offset:])
	return Step{Data: b}
}

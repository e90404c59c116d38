//go:build linux && (amd64 || arm64)

package rdma

import "viaduct/cmd/viaduct/internal/rdma/abi"

// Features of RDMA absent from iWARP. The program gets the error of the kernel's driver, which only
// means that something is not possible. The user gets a line with the name of the feature.

// A lack is a missing feature, with a remedy for the user.
type lack struct{ what, instead string }

const (
	useRoCE  = "run it with --device rxe0, a RoCE device, which has that"
	useNone  = "no emulated device has that"
	useRDMCM = "connect by rdma_cm (perftest: -R), or run it with --device rxe0, a RoCE device, where programs connect queue pairs themselves"
)

// queuePairLacks are the types of queue pairs other than reliable connections.
var queuePairLacks = map[uint8]lack{
	3:  {"unreliable connections (UC)", useRoCE},
	4:  {"datagrams (UD)", useRoCE},
	8:  {"raw packets", useNone},
	9:  {"XRC", useNone},
	10: {"XRC", useNone},
}

// commandLacks are the commands without a handler.
var commandLacks = map[abi.Command]lack{
	abi.CreateAH:    {"an address handle, for datagrams", useRoCE},
	abi.AllocMW:     {"a memory window", useRoCE},
	abi.AttachMcast: {"multicast", useRoCE},
	abi.CreateXSRQ:  {"a shared receive queue of the extended form", useRoCE},
	abi.ResizeCQ:    {"another size of a completion queue", useRoCE},
	abi.CreateCQEx:  {"an extended completion queue", useRoCE},
	abi.CreateQPEx:  {"an extended queue pair", useRoCE},
}

var (
	lacksAtomics   = lack{"memory for atomic operations", useRoCE}
	lacksConnector = lack{"a queue pair that is connected without rdma_cm", useRDMCM}
)

// lacks reports to the user a feature the program requested and the device does not have. The zero
// lack is not reported.
func (k *command) lacks(l lack) {
	if l.what == "" {
		return
	}
	k.x.s.tellOnce(l.what, "%s asks %s for %s, which %s does not have: %s", programName(k.TID),
		k.x.dev.found.Name, l.what, k.x.dev.is.kind, l.instead)
}

// lacksDatagrams reports to the user that rdma_cm has no device for datagrams, unless there is a
// RoCE device.
func (s *Service) lacksDatagrams(tid int) {
	for _, d := range s.devices {
		if d.is != siw {
			return
		}
	}
	s.tellOnce("datagrams of rdma_cm", "%s asks rdma_cm for datagrams (UD), which iWARP does not have: %s",
		programName(tid), useRoCE)
}

// lackOfRights reports memory registered for atomic operations on an iWARP device. iWARP has no
// atomic operations. Libraries request the right along with Writes, needed or not. Only a request
// without Writes is reported to the user; the others are just explained.
func (k *command) lackOfRights(access uint32) {
	switch {
	case access&abi.AccessRemoteAtomic == 0 || k.x.dev.is != siw:
	case access&abi.AccessRemoteWrite == 0:
		k.lacks(lacksAtomics)
	default:
		k.x.s.explain("%s registers memory for atomic operations among others, which iWARP does not have: if it needs them, %s", programName(k.TID), useRoCE)
	}
}

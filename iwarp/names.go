package iwarp

import (
	"viaduct/internal/wire/mpa"
	"viaduct/internal/wire/rdmap"
)

// Names for types of the start-up and of error reports.
type (
	// An RTR is a set of kinds of the message by which an initiator in the
	// peer-to-peer model says that it is ready.
	RTR = mpa.RTR
	// Params are what start-up agreed on, seen from one side.
	Params = mpa.Params
	// A Decision is what [Request.AcceptWith] answers.
	Decision = mpa.Decision
	// A Layer says which layer found the error of a Terminate.
	Layer = rdmap.Layer

	// RTR [MPA2 9.2], Layer [RDMAP 4.8].
)

// The kinds of RTR; each is a message without payload.
const (
	RTRSend  = mpa.RTRSend
	RTRWrite = mpa.RTRWrite
	RTRRead  = mpa.RTRRead
)

// The layers.
const (
	LayerRDMAP = rdmap.LayerRDMAP
	LayerDDP   = rdmap.LayerDDP
	LayerLLP   = rdmap.LayerLLP // MPA
)

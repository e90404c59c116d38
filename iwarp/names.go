package iwarp

import "viaduct/internal/wire/mpa"

// Params are the results of start-up, as seen from this side.
type Params struct {
	Rev         uint8 // revision of MPA
	SendMarkers bool  // the peer asked for markers
	RecvMarkers bool  // we asked for markers
	CRC         bool  // CRCs are made and checked in both directions
	Enhanced    bool  // depths and model were negotiated, which needs revision 2
	PeerToPeer  bool  // the Initiator's stack sends a ready message first

	IRD, ORD         uint16 // our own depths after the exchange
	PeerIRD, PeerORD uint16 // depths in the peer's frame; 0 in revision 1

	Private []byte // private data of the peer: input from the network

	// Requirements: Rev [MPA-7.1.1-18] [MPA-3-13], SendMarkers [MPA-7.1.1-6] [MPA-7.1.1-7], CRC
	// [MPA-7.1.1-9], PeerIRD, PeerORD [MPA2-9.1-4] [MPA2-9.1-14], Private [MPA-7.1.1-21].
}

func params(p mpa.Params) Params {
	return Params{
		Rev: p.Rev, SendMarkers: p.SendMarkers, RecvMarkers: p.RecvMarkers, CRC: p.CRC,
		Enhanced: p.Enhanced, PeerToPeer: p.PeerToPeer,
		IRD: p.IRD, ORD: p.ORD, PeerIRD: p.PeerIRD, PeerORD: p.PeerORD, Private: p.Private,
	}
}

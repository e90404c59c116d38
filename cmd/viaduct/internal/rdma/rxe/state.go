package rxe

import "viaduct/cmd/viaduct/internal/rdma/abi"

// A Type is the type of a queue pair.
type Type uint8

// The types.
const (
	RC Type = 2
	UC Type = 3
	UD Type = 4
)

// String returns the usual abbreviation of the type.
func (t Type) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	}
	return "UD"
}

// A Mask is the set of attributes a change contains.
type Mask uint32

// The attributes.
const (
	MaskState Mask = 1 << iota
	MaskCurState
	MaskDrainNotify
	MaskAccess
	MaskPKey
	MaskPort
	MaskQKey
	MaskPath
	MaskMTU
	MaskTimeout
	MaskRetry
	MaskRNRRetry
	MaskRecvPSN
	MaskMaxReads
	MaskAltPath
	MaskMinRNR
	MaskSendPSN
	MaskMaxDestReads
	MaskMigration
	MaskCap
	MaskDestQP
)

// A change is a transition between two states.
type change struct{ from, to abi.State }

// A needs holds the attributes a change must and may contain, besides the state.
type needs struct{ must, may Mask }

// changes lists the transitions a program may request, with the attributes each must and may
// contain. It corresponds to the table of the kernel's ib_modify_qp_is_ok. In addition, every state
// may change to Reset and to Err without attributes: for example, from RTS to Reset.
var changes = map[Type]map[change]needs{
	RC: {
		{abi.Reset, abi.Init}: {must: MaskPKey | MaskPort | MaskAccess},
		{abi.Init, abi.Init}:  {may: MaskPKey | MaskPort | MaskAccess},
		{abi.Init, abi.RTR}: {must: MaskPath | MaskMTU | MaskDestQP | MaskRecvPSN | MaskMaxDestReads | MaskMinRNR,
			may: MaskAltPath | MaskAccess | MaskPKey},
		{abi.RTR, abi.RTS}: {must: MaskTimeout | MaskRetry | MaskRNRRetry | MaskSendPSN | MaskMaxReads,
			may: MaskCurState | MaskAltPath | MaskAccess | MaskMinRNR | MaskMigration},
		{abi.RTS, abi.RTS}: {may: MaskCurState | MaskAccess | MaskAltPath | MaskMigration | MaskMinRNR},
		{abi.RTS, abi.SQD}: {may: MaskDrainNotify},
		{abi.SQD, abi.RTS}: {may: MaskCurState | MaskAltPath | MaskAccess | MaskMinRNR | MaskMigration},
		{abi.SQD, abi.SQD}: {may: MaskPort | MaskPath | MaskTimeout | MaskRetry | MaskRNRRetry | MaskMaxReads | MaskMaxDestReads |
			MaskAltPath | MaskAccess | MaskPKey | MaskMinRNR | MaskMigration},
	},
	UC: {
		{abi.Reset, abi.Init}: {must: MaskPKey | MaskPort | MaskAccess},
		{abi.Init, abi.Init}:  {may: MaskPKey | MaskPort | MaskAccess},
		{abi.Init, abi.RTR}:   {must: MaskPath | MaskMTU | MaskDestQP | MaskRecvPSN, may: MaskAltPath | MaskAccess | MaskPKey},
		{abi.RTR, abi.RTS}:    {must: MaskSendPSN, may: MaskCurState | MaskAltPath | MaskAccess | MaskMigration},
		{abi.RTS, abi.RTS}:    {may: MaskCurState | MaskAccess | MaskAltPath | MaskMigration},
		{abi.RTS, abi.SQD}:    {may: MaskDrainNotify},
		{abi.SQD, abi.RTS}:    {may: MaskCurState | MaskAltPath | MaskAccess | MaskMigration},
		{abi.SQD, abi.SQD}:    {may: MaskPath | MaskAltPath | MaskAccess | MaskPKey | MaskMigration},
		{abi.SQE, abi.RTS}:    {may: MaskCurState | MaskAccess},
	},
	UD: {
		{abi.Reset, abi.Init}: {must: MaskPKey | MaskPort | MaskQKey},
		{abi.Init, abi.Init}:  {may: MaskPKey | MaskPort | MaskQKey},
		{abi.Init, abi.RTR}:   {may: MaskPKey | MaskQKey},
		{abi.RTR, abi.RTS}:    {must: MaskSendPSN, may: MaskCurState | MaskQKey},
		{abi.RTS, abi.RTS}:    {may: MaskCurState | MaskQKey},
		{abi.RTS, abi.SQD}:    {may: MaskDrainNotify},
		{abi.SQD, abi.RTS}:    {may: MaskCurState | MaskQKey},
		{abi.SQD, abi.SQD}:    {may: MaskPKey | MaskQKey},
		{abi.SQE, abi.RTS}:    {may: MaskCurState | MaskQKey},
	},
}

// mayChange reports whether a queue pair of type t may make a transition with the given attributes.
func mayChange(t Type, c change, given Mask) bool {
	n, known := changes[t][c]
	if !known && c.to != abi.Reset && c.to != abi.Err {
		return false
	}
	given &^= MaskState
	return given&n.must == n.must && given&^(n.must|n.may) == 0
}

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

// String returns the name that users know.
func (t Type) String() string {
	switch t {
	case RC:
		return "RC"
	case UC:
		return "UC"
	}
	return "UD"
}

// A Mask says which attributes a change of a queue pair gives.
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

// A change is one from a state to a state.
type change struct{ from, to abi.State }

// What a change must have and may have, besides the state.
type needs struct{ must, may Mask }

// changes are those that a program may ask for, with what each must and may give: the table of the kernel's
// ib_modify_qp_is_ok. Every state may change to Reset and to Err besides, with nothing given.
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

// mayChange reports whether a queue pair of a type may change so, with the attributes of a mask.
func mayChange(t Type, c change, given Mask) bool {
	n, known := changes[t][c]
	if !known && c.to != abi.Reset && c.to != abi.Err {
		return false
	}
	given &^= MaskState
	return given&n.must == n.must && given&^(n.must|n.may) == 0
}

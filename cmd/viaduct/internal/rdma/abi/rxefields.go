package abi

import (
	"maps"
	"slices"
)

// The additional kinds of fields in commands of the rxe provider.
const (
	AH         Kind = 96 + iota // the handle of an address handle
	Window                      // the handle of a memory window
	WindowType                  // 1 or 2
	Address                     // one half of the address of a port
	Group                       // the first half of the address of a multicast group
	GIDIndex                    // the index of a GID of the port
	Global                      // not 0: packets have a global header
)

// rxeFields are the bodies of the commands only the rxe provider sends.
var rxeFields = map[Command][]Field{
	CreateAH: {reply, {"user_handle", 8, 8, Any}, {"pd_handle", 16, 4, Domain}, {"dgid", 24, 8, Address},
		{"dgid", 32, 8, Address},
		{"sgid_index", 44, 1, GIDIndex}, {"is_global", 53, 1, Global}, {"port_num", 54, 1, Port}},
	DestroyAH:   {{"ah_handle", 0, 4, AH}},
	AllocMW:     {reply, {"pd_handle", 8, 4, Domain}, {"mw_type", 12, 1, WindowType}},
	DeallocMW:   {{"mw_handle", 0, 4, Window}},
	ResizeCQ:    {reply, {"cq_handle", 8, 4, CQ}, {"cqe", 12, 4, Count}},
	ReqNotifyCQ: {{"cq_handle", 0, 4, CQ}, {"solicited_only", 4, 4, Any}},
	AttachMcast: {{"gid", 0, 8, Group}, {"gid", 8, 8, Any}, {"qp_handle", 16, 4, QP}, {"mlid", 20, 2, Any}},
	DetachMcast: {{"gid", 0, 8, Group}, {"gid", 8, 8, Any}, {"qp_handle", 16, 4, QP}, {"mlid", 20, 2, Any}},
	CreateXSRQ: {reply, {"user_handle", 8, 8, Any}, {"srq_type", 16, 4, Zero},
		{"pd_handle", 20, 4, Domain}, {"max_wr", 24, 4, Count},
		{"max_sge", 28, 4, Count}, {"srq_limit", 32, 4, Count}},
	CreateCQEx: {{"user_handle", 0, 8, Any}, {"cqe", 8, 4, Count}, {"comp_vector", 12, 4, Vector},
		{"comp_channel", 16, 4, Channel},
		{"comp_mask", 20, 4, Zero}, {"flags", 24, 4, Zero}, {"reserved", 28, 4, Zero}},
	CreateQPEx: {{"user_handle", 0, 8, Any}, {"pd_handle", 8, 4, Domain}, {"send_cq_handle", 12, 4, CQ},
		{"recv_cq_handle", 16, 4, CQ},
		{"srq_handle", 20, 4, SRQ}, {"max_send_wr", 24, 4, Count}, {"max_recv_wr", 28, 4, Count}, {"max_send_sge", 32, 4, Count},
		{"max_recv_sge", 36, 4, Count}, {"max_inline_data", 40, 4, Count}, {"sq_sig_all", 44, 1, Any}, {"qp_type", 45, 1, Type},
		{"is_srq", 46, 1, Bool}, {"comp_mask", 48, 4, Zero}, {"create_flags", 52, 4, Zero}},
}

// RXECommands returns the commands only the rxe provider sends, in order of number.
func RXECommands() []Command { return slices.Sorted(maps.Keys(rxeFields)) }

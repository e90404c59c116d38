package abi

import (
	"maps"
	"slices"
)

// A Field is a part of a command's body.
type Field struct {
	Name     string
	At, Size int // bytes
	Kind     Kind
}

// A Kind is the meaning of a field. It determines which values are wrong.
type Kind uint8

// The kinds of fields.
const (
	Any       Kind = iota // the program's own number, or a number that nothing reads
	Reply                 // the address of the response
	Domain                // the handle of a protection domain
	Region                // the handle of a region
	CQ                    // the handle of a completion queue
	QP                    // the handle of a queue pair
	SRQ                   // the handle of a shared receive queue
	Channel               // the descriptor of a completion channel; negative means none
	Start                 // an address in the program's memory
	Virtual               // the address that peers use for Start, with the same offset in its page
	Length                // number of bytes that begin at Start
	Count                 // requested number of entries or elements
	Bool                  // 1 if a field that depends on it is used
	Rights                // access flags of a region
	QPMask                // which attributes of a queue pair are set
	SRQMask               // which attributes of a shared receive queue are set
	NextState             // the next state of a queue pair
	Type                  // the type of a queue pair
	Port                  // 1, the only port
	Vector                // a completion vector
	Zero                  // 0, because it has no use yet
)

// fields are the bodies of the write commands. Bytes without a name are padding.
var fields = map[Command][]Field{
	GetContext:    {reply},
	QueryDevice:   {reply},
	QueryDeviceEx: {{"comp_mask", 0, 4, Zero}, {"reserved", 4, 4, Zero}},
	QueryPort:     {reply, {"port_num", 8, 1, Port}},
	AllocPD:       {reply},
	DeallocPD:     {{"pd_handle", 0, 4, Domain}},
	RegMR: {reply, {"start", 8, 8, Start}, {"length", 16, 8, Length},
		{"hca_va", 24, 8, Virtual}, {"pd_handle", 32, 4, Domain}, {"access_flags", 36, 4, Rights}},
	DeregMR:           {{"mr_handle", 0, 4, Region}},
	CreateCompChannel: {reply},
	CreateCQ: {reply, {"user_handle", 8, 8, Any}, {"cqe", 16, 4, Count},
		{"comp_vector", 20, 4, Vector}, {"comp_channel", 24, 4, Channel}},
	DestroyCQ: {reply, {"cq_handle", 8, 4, CQ}},
	CreateQP: {reply, {"user_handle", 8, 8, Any}, {"pd_handle", 16, 4, Domain},
		{"send_cq_handle", 20, 4, CQ}, {"recv_cq_handle", 24, 4, CQ}, {"srq_handle", 28, 4, SRQ},
		{"max_send_wr", 32, 4, Count}, {"max_recv_wr", 36, 4, Count}, {"max_send_sge", 40, 4, Count}, {"max_recv_sge", 44, 4, Count}, {"max_inline_data", 48, 4, Count},
		{"sq_sig_all", 52, 1, Any}, {"qp_type", 53, 1, Type}, {"is_srq", 54, 1, Bool}},
	QueryQP: {reply, {"qp_handle", 8, 4, QP}, {"attr_mask", 12, 4, Any}},
	ModifyQP: {{"qp_handle", 64, 4, QP}, {"attr_mask", 68, 4, QPMask}, {"qp_access_flags", 88, 4, Any},
		{"qp_state", 96, 1, NextState}},
	DestroyQP: {reply, {"qp_handle", 8, 4, QP}},
	PostSend: {reply, {"qp_handle", 8, 4, QP}, {"wr_count", 12, 4, Any}, {"sge_count", 16, 4, Any},
		{"wqe_size", 20, 4, Any}},
	CreateSRQ: {reply, {"user_handle", 8, 8, Any}, {"pd_handle", 16, 4, Domain},
		{"max_wr", 20, 4, Count}, {"max_sge", 24, 4, Count}, {"srq_limit", 28, 4, Count}},
	ModifySRQ: {{"srq_handle", 0, 4, SRQ}, {"attr_mask", 4, 4, SRQMask}, {"max_wr", 8, 4, Any},
		{"srq_limit", 12, 4, Any}},
	QuerySRQ:   {reply, {"srq_handle", 8, 4, SRQ}},
	DestroySRQ: {reply, {"srq_handle", 8, 4, SRQ}},
}

var reply = Field{"response", 0, 8, Reply}

// Commands returns the write commands common to all providers, in order.
func Commands() []Command { return slices.Sorted(maps.Keys(fields)) }

// Fields returns the parts of the command's body.
func (c Command) Fields() []Field {
	if f, ok := rxeFields[c]; ok {
		return f
	}
	return fields[c]
}

// Lengths returns the least lengths of the body and of the core's response, without headers.
func (c Command) Lengths() (in, out int) { return layouts[c].in, layouts[c].out }

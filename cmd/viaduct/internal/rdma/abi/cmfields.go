package abi

import (
	"maps"
	"slices"
)

// The additional kinds of fields in the commands of rdma_cm.
const (
	Identifier Kind = 64 + iota // the number of an identifier
	PortSpace                   // TCP, UDP or InfiniBand's own
	IDType                      // type of the identifier's queue pair; 0 for any
	Family                      // an address family
	QPNumber                    // the number of a queue pair
	Given                       // not 0 if the command has connection parameters
	CMState                     // state of a queue pair whose attributes are requested
	Value                       // the address of an option's value
	Level                       // the level of an option
	Option                      // the name of an option
	OptionLen                   // the length of an option's value
	CMFile                      // the descriptor of an rdma_cm file
	OwnEvent                    // type of an event that a program may write
)

func id(at int) Field { return Field{"id", at, 4, Identifier} }

// cmFields are the bodies of the rdma_cm commands that iWARP uses, without the parts nothing reads.
var cmFields = map[CMCommand][]Field{
	CMCreateID: {{"uid", 0, 8, Any}, {"response", 8, 8, Reply}, {"ps", 16, 2, PortSpace},
		{"qp_type", 18, 1, IDType}},
	CMDestroyID:    {reply, id(8)},
	CMBindIP:       {{"family", 8, 2, Family}, id(36)},
	CMResolveIP:    {{"dst_family", 28, 2, Family}, id(56), {"timeout_ms", 60, 4, Any}},
	CMResolveRoute: {id(0), {"timeout_ms", 4, 4, Any}},
	CMQueryRoute:   {reply, id(8)},
	CMConnect:      {{"qp_num", 0, 4, QPNumber}, {"valid", 271, 1, Given}, id(272)},
	CMListen:       {id(0), {"backlog", 4, 4, Any}},
	CMAccept:       {{"uid", 0, 8, Any}, {"qp_num", 8, 4, QPNumber}, {"valid", 279, 1, Given}, id(280)},
	CMReject:       {id(0), {"reason", 5, 1, Any}},
	CMDisconnect:   {id(0)},
	CMInitQPAttr:   {reply, id(8), {"qp_state", 12, 4, CMState}},
	CMGetEvent:     {reply},
	CMSetOption: {{"optval", 0, 8, Value}, id(8), {"level", 12, 4, Level}, {"optname", 16, 4, Option},
		{"optlen", 20, 4, OptionLen}},
	CMNotify:     {id(0), {"event", 4, 4, Any}},
	CMMigrateID:  {reply, id(8), {"fd", 12, 4, CMFile}},
	CMWriteEvent: {id(0), {"event", 8, 4, OwnEvent}, {"status", 12, 4, Any}, {"arg", 16, 8, Any}},
}

// CMCommands returns the commands of rdma_cm with fields, in order.
func CMCommands() []CMCommand { return slices.Sorted(maps.Keys(cmFields)) }

// Fields returns the parts of the command's body.
func (c CMCommand) Fields() []Field { return cmFields[c] }

// Lengths returns the length of the body, and the least length of the response. Both are 0 for
// commands without an entry in the table.
func (c CMCommand) Lengths() (in, out int) { return cmLengths[c].in, cmLengths[c].out }

var cmLengths = map[CMCommand]struct{ in, out int }{
	CMCreateID: {24, 4}, CMDestroyID: {16, 4}, CMBindIP: {40, 0}, CMResolveIP: {64, 0}, CMResolveRoute: {8, 0},
	CMQueryRoute: {16, 200}, CMConnect: {288, 0}, CMListen: {8, 0}, CMAccept: {296, 0}, CMReject: {264, 0},
	CMDisconnect: {8, 0}, CMInitQPAttr: {16, QPAttrLen}, CMGetEvent: {8, eventLeast}, CMSetOption: {24, 0},
	CMNotify: {8, 0}, CMMigrateID: {16, 4}, CMJoinIPMcast: {48, 4}, CMLeaveMcast: {16, 4},
	CMWriteEvent: {320, 0},
}

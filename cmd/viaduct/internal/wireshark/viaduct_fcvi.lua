-- FC-VI (ISO/IEC 14165-331): the Device_Header of Fibre Channel frames of type 0x58.
-- Fields are named as those of "viaduct decode". The codes that the public documents
-- do not settle are the project's own; see docs/fc-vi.md.
--
-- The FC dissector of Wireshark hands such frames to none, so this runs behind the others. What
-- it shows is limited to what that dissector finds: of several frames in a TCP
-- segment Wireshark 4.0 shows the header of the first.

local p = Proto("fcvi", "Fibre Channel Virtual Interface Architecture")

local TYPE, SHORT, LONG = 0x58, 16, 32

local opcodes = {
	[0x01] = "SEND_RQST", [0x02] = "WRITE_RQST", [0x03] = "READ_RQST", [0x11] = "SEND_RESP", [0x12] = "WRITE_RESP",
	[0x13] = "READ_RESP", [0x20] = "CONNECT_RQST", [0x21] = "CONNECT_RESP1", [0x22] = "CONNECT_RESP2",
	[0x23] = "CONNECT_RESP3", [0x30] = "DISCONNECT_RQST", [0x31] = "DISCONNECT_RESP",
}
local short = { [0x01] = true, [0x11] = true, [0x12] = true }

local f = {
	opcode = ProtoField.uint8("fcvi.opcode", "FCVI_OPCODE", base.DEC, opcodes),
	handle = ProtoField.uint32("fcvi.handle", "FCVI_HANDLE", base.HEX),
	flags = ProtoField.uint8("fcvi.flags", "FCVI_FLAGS", base.HEX),
	msg_id = ProtoField.uint32("fcvi.msg_id", "FCVI_MSG_ID"),
	parameter = ProtoField.uint32("fcvi.parameter", "FCVI_PARAMETER", base.HEX),
	rmt_va = ProtoField.uint64("fcvi.rmt_va", "FCVI_RMT_VA", base.HEX),
	rmt_va_handle = ProtoField.uint32("fcvi.rmt_va_handle", "FCVI_RMT_VA_HANDLE", base.HEX),
	tot_len = ProtoField.uint32("fcvi.tot_len", "FCVI_TOT_LEN or FCVI_CONNECTION_ID"),
}
p.fields = f

local bad = ProtoExpert.new("fcvi.bad_opcode", "Not one of the twelve opcodes", expert.group.MALFORMED, expert.severity.ERROR)
p.experts = { bad }

local types = Field.new("fc.type")

local function frame(source, at, pinfo, tree)
	local df = source(at + 13, 1):uint()
	local size = ({ [1] = 16, [2] = 32, [3] = 64 })[bit.band(df, 3)]
	if not size then
		return
	end
	at = at + 24
	for mask, n in pairs({ [0x40] = 8, [0x20] = 16, [0x10] = 32 }) do -- the headers before it
		if bit.band(df, mask) ~= 0 then
			at = at + n
		end
	end
	if at + size > source:len() then
		return
	end
	local b = source(at, size)
	local t = tree:add(p, b)
	local op = b(4, 1):uint()
	t:add(f.opcode, b(4, 1))
	if not opcodes[op] then
		t:add_proto_expert_info(bad)
		return
	end
	t:append_text(", " .. opcodes[op])
	pinfo.cols.protocol = "FC-VI"
	pinfo.cols.info:append(" [FC-VI " .. opcodes[op] .. "]")
	t:add(f.handle, b(0, 4))
	t:add(f.flags, b(5, 1))
	t:add(f.msg_id, b(8, 4))
	t:add(f.parameter, b(12, 4))
	if not short[op] and size >= LONG then
		t:add(f.rmt_va, b(16, 8))
		t:add(f.rmt_va_handle, b(24, 4))
		t:add(f.tot_len, b(28, 4))
	end
end

function p.dissector(_, pinfo, tree)
	for _, x in ipairs({ types() }) do
		if x.value == TYPE and x.len == 1 and x.offset >= 8 and x.source:len() >= x.offset + 16 then
			frame(x.source, x.offset - 8, pinfo, tree)
		end
	end
end

register_postdissector(p)

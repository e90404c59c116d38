-- The Port Mapper of SDP over iWARP (draft-pinkerton-iwarp-sdp-01, 7), UDP port 3935.
-- "portmap" is another protocol of Wireshark: fields are those of "viaduct decode" with
-- sdp_portmap for portmap.

local p = Proto("sdp_portmap", "SDP Port Mapper")

local types = { [0] = "PMReq", [1] = "PMAccept", [2] = "PMAck", [3] = "PMDeny" }

local f = {
	type = ProtoField.uint8("sdp_portmap.type", "Type", base.DEC, types, 0x30),
	pm_time = ProtoField.uint8("sdp_portmap.pm_time", "PmTime"),
	handle = ProtoField.uint64("sdp_portmap.handle", "AssocHandle", base.HEX),
	cp = ProtoField.string("sdp_portmap.cp", "Connecting Peer"),
	ap = ProtoField.string("sdp_portmap.ap", "Accepting Peer"),
}
p.fields = f

local bad = ProtoExpert.new("sdp_portmap.malformed", "Not a message of the Port Mapper", expert.group.MALFORMED, expert.severity.ERROR)
p.experts = { bad }

local LENGTH = 48

local function address(b, version, port)
	if version == 4 then
		return string.format("%s:%d", tostring(b(0, 4):ipv4()), port)
	end
	return string.format("[%s]:%d", tostring(b:ipv6()), port)
end

function p.dissector(tvb, pinfo, tree)
	pinfo.cols.protocol = "SDP-PM"
	local t = tree:add(p, tvb())
	local version = tvb(0, 1):bitfield(4, 4)
	if tvb:len() < LENGTH or tvb(0, 1):bitfield(0, 2) ~= 0 or version ~= 4 and version ~= 6 then
		t:add_proto_expert_info(bad)
		return tvb:len()
	end
	local type = tvb(0, 1):bitfield(2, 2)
	t:append_text(", " .. types[type])
	pinfo.cols.info = types[type]
	t:add(f.type, tvb(0, 1))
	t:add(f.pm_time, tvb(1, 1))
	t:add(f.handle, tvb(8, 8))
	t:add(f.cp, tvb(16, 16), address(tvb(16, 16), version, tvb(6, 2):uint()))
	t:add(f.ap, tvb(32, 16), address(tvb(32, 16), version, tvb(4, 2):uint()))
	return tvb:len()
end

DissectorTable.get("udp.port"):add(3935, p)

package status

import "time"

// A Process is the report of one process. Its JSON form is the output of "viaduct ps --json". Later
// versions may add fields, but do not change the meaning of a field.
type Process struct {
	PID       int        `json:"pid"`
	Program   string     `json:"program"`           // what the process does: a verb of the command with its arguments, or a program's name
	Version   string     `json:"version,omitempty"` // version of the program
	Started   time.Time  `json:"started,omitzero"`
	Memory    uint64     `json:"memory_bytes,omitempty"` // resident memory of the whole process in bytes
	Threads   int        `json:"goroutines,omitempty"`
	Listeners []Listener `json:"listeners,omitempty"`
	Conns     []Conn     `json:"connections,omitempty"`

	// Problem is the reason why the other fields are missing: the process did not answer in time,
	// or sent an invalid answer.
	Problem string `json:"problem,omitempty"`
}

// A Listener is an address where connections are accepted.
type Listener struct {
	Transport string    `json:"transport"`
	URL       string    `json:"url"`
	Opened    time.Time `json:"opened,omitzero"`
}

// A Conn is one connection.
type Conn struct {
	ID        uint64 `json:"id"` // number of this connection within its process
	Transport string `json:"transport"`
	Role      string `json:"role"` // "dial", "accept", or "peer" where both sides called
	Local     string `json:"local"`
	Remote    string `json:"remote"`

	Path string `json:"path"`          // how bytes travel, as "iwarp crc" or "sdp combined/pipelined"
	Why  string `json:"why,omitempty"` // why the connection uses this protocol, as a sentence

	// SharedMemory means that the bytes go through shared memory instead of TCP. Otherwise WhyTCP
	// is the reason, if known.
	SharedMemory bool   `json:"shared_memory"`
	WhyTCP       string `json:"why_tcp,omitempty"`

	State string `json:"state"` // "open", or the name of the unusual state

	Opened time.Time `json:"opened,omitzero"`
	Active time.Time `json:"active,omitzero"` // time of the last send or receive, if known

	SentBytes     uint64 `json:"sent_bytes"` // payload
	ReceivedBytes uint64 `json:"received_bytes"`
	Credits       int    `json:"credits"`                // messages that this end may send now; -1 if there is no flow control
	Queued        uint64 `json:"queued"`                 // requests, or bytes of a stream, that are not yet sent and acknowledged
	Memory        uint64 `json:"memory_bytes,omitempty"` // bytes of receive buffers

	// Counters have the names of "rdma statistic" where the meaning is the same, and are present
	// only on request.
	Counters map[string]uint64 `json:"counters,omitempty"`
}

// Reason returns why the bytes take this path: Why, and the reason for TCP instead of shared memory
// if it is known.
func (c *Conn) Reason() string {
	if c.WhyTCP == "" {
		return c.Why
	}
	tcp := "not shared memory: " + c.WhyTCP
	if c.Why == "" {
		return tcp
	}
	return c.Why + "; " + tcp
}

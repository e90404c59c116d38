package run

// A Finding is what --check says of one thing.
type Finding struct {
	What string `json:"what"`
	Good bool   `json:"good"`
	// Warn says that programs can be run, but do not get everything.
	Warn bool   `json:"warn,omitempty"`
	Says string `json:"says"`
	Do   string `json:"do,omitempty"`
}

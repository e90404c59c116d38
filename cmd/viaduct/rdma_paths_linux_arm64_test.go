package main

// legacyPathCalls adds nothing, because arm64 has no legacy calls.
func legacyPathCalls(map[string]func() error, string, func(uint32, uint64) error, func(error) error) {
}

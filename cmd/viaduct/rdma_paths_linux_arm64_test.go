package main

// legacyPathCalls adds nothing, because this processor has no such calls.
func legacyPathCalls(map[string]func() error, string, func(uint32, uint64) error, func(error) error) {
}

//go:build !linux

package vitcp

const sharesPorts = false

func unixSockets() string { return "" }

package verbs

import "github.com/spf13/cobra"

// A group is a section of the help: a purpose of the command, with the verbs.
type group struct {
	title string
	verbs []string
}

// groups returns all groups, in the order of the help.
func groups() []group {
	return []group{
		{"Verbs that run unmodified programs", []string{"run", "vipl"}},
		{"Verbs that show protocols and connections", []string{"decode", "ladder", "conform", "wireshark", "ps", "stat"}},
		{"Verbs that move files", []string{"serve", "get", "put", "sync", "ls", "demo"}},
		{"Verbs that connect and measure", []string{"echo", "ping", "rping", "nc", "bench", "proxy", "nvme"}},
		{"Verbs that find services and hosts", []string{"portmap", "registry", "fabric"}},
		{"Verbs about viaduct itself", []string{"config", "completion", "man", "version", "help"}},
	}
}

// addGroups assigns the verbs of the root to their groups.
func addGroups(root *cobra.Command) {
	for _, g := range groups() {
		root.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, name := range g.verbs {
			for _, c := range root.Commands() {
				if c.Name() == name {
					c.GroupID = g.title
				}
			}
		}
	}
}

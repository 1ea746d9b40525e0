package main

import (
	"github.com/spf13/cobra"
)

func newQuickstart(o *options) *cobra.Command {
	return &cobra.Command{Use: "quickstart"}
}

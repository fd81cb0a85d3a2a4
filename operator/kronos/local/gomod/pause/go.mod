module kronos/pause

go 1.26.0

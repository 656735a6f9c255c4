module example.test/web

go 1.24

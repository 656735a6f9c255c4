document.title = 'webpack in a berth'

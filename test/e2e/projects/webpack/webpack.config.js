module.exports = {
  entry: './src/index.js',
  devServer: { static: '.', host: '127.0.0.1' },
}
